// How a payload is shown: as text, as JSON on several lines, or as bytes.

const most = 64 * 1024; // bytes that become hex

export function decode(base64) {
  const raw = atob(base64 || '');
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

// text is the bytes as UTF-8, or null when they are none. A payload that was
// cut may end within a character.
export function text(bytes, cut) {
  for (let less = 0; less < (cut ? 4 : 1); less++) {
    try {
      return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes.subarray(0, bytes.length - less));
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
  let out = '', depth = 0;
  const line = () => `\n${'  '.repeat(Math.min(depth, 40))}`;
  for (const [token] of source.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    if (token === '{' || token === '[') {
      depth++;
      out += token + line();
    } else if (token === '}' || token === ']') {
      depth--;
      out = /[{[]\s*$/.test(out.slice(-90)) ? out.trimEnd() + token : out + line() + token;
    } else if (token === ',') {
      out += token + line();
    } else if (token === ':') {
      out += ': ';
    } else {
      out += token;
    }
  }
  return out;
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
