// How a payload is shown: as text, as JSON on several lines, or as bytes.

const most = 64 * 1024; // bytes that become hex, and characters of text

export function decode(base64) {
  const raw = atob(base64 || '');
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

const controls = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g;

// text is the bytes as UTF-8, or null when they are none, or mostly control
// characters, which are better looked at in hex. A payload that was cut may end
// within a character.
export function text(bytes, cut) {
  for (let less = 0; less < (cut ? 4 : 1); less++) {
    try {
      const s = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes.subarray(0, bytes.length - less));
      return (s.match(controls) || []).length > 16 + s.length / 8 ? null : s;
    } catch { /* a byte less */ }
  }
  return null;
}

// pretty indents JSON without changing a number or a string, as parsing and
// writing would; null for what is none.
export function pretty(source) {
  try {
    const v = JSON.parse(source);
    if (v === null || typeof v !== 'object') return null;
  } catch {
    return null;
  }
  // Pieces, joined once: to look at the end of a text that grows copies all of it each time.
  const out = [];
  let depth = 0, last = '';
  const line = () => `\n${'  '.repeat(Math.min(depth, 40))}`;
  for (const [token] of source.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    if (token === '{' || token === '[') {
      depth++;
      out.push(token, line());
    } else if (token === '}' || token === ']') {
      depth--;
      if (last === '{' || last === '[') out[out.length - 1] = token; // in place of the new line
      else out.push(line(), token);
    } else if (token === ',') {
      out.push(token, line());
    } else if (token === ':') {
      out.push(': ');
    } else {
      out.push(token);
    }
    last = token;
  }
  return out.join('');
}

// start is as much of a text as is shown: each line of it, and each character
// that cannot be printed, is an element of the page.
export function start(text) {
  return text.length <= most ? text : `${text.slice(0, most)}\n… ${text.length - most} characters more`;
}

export function hex(bytes) {
  const lines = [];
  const end = Math.min(bytes.length, most);
  for (let i = 0; i < end; i += 16) {
    const row = Array.from(bytes.subarray(i, Math.min(i + 16, end)));
    const digits = row.map((b) => b.toString(16).padStart(2, '0')).join(' ').padEnd(47);
    const chars = row.map((b) => (b > 31 && b < 127 ? String.fromCharCode(b) : '.')).join('');
    lines.push(`${i.toString(16).padStart(8, '0')}  ${digits}  ${chars}`);
  }
  if (end < bytes.length) lines.push(`… ${bytes.length - end} bytes more`);
  return lines.join('\n');
}
