// Shows the fired events of Lapse as they come. Where to connect stands in the
// address of the page: ?server=ws://127.0.0.1:8422&topic=orders.%3E, and
// &token= when the server wants one.
import { wsconnect } from '@nats-io/nats-core';

const options = new URLSearchParams(location.search);
const topic = options.get('topic') ?? '>';
const state = document.getElementById('state');

const nc = await wsconnect({
  servers: options.get('server') ?? 'ws://127.0.0.1:8422',
  token: options.get('token') ?? undefined,
  maxReconnectAttempts: -1,
}).catch((err) => {
  state.textContent = `not connected: ${err.message}`;
  throw err;
});

// Live delivery: what fires while the page is closed is not seen here. Every
// copy of one fire has the same Nats-Msg-Id.
nc.subscribe(`timers.fired.${topic}`, {
  callback: (err, m) => {
    if (err) {
      state.textContent = `not permitted: ${err.message}`;
      return;
    }
    const row = document.getElementById('fired').insertRow(0);
    for (const text of [m.headers.get('Timer-Topic'), m.headers.get('Timer-Id'), m.headers.get('Timer-Due'), m.string()]) {
      row.insertCell().textContent = text; // as text, whatever it holds
    }
  },
});
await nc.flush();
state.textContent = `connected to ${nc.getServer()}, listening to ${topic}`;
