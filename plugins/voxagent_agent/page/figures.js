// The measures beside a call: response, interruption, network. Knows nothing of calls.

const PARTS = [
  ["turn", "turn end"],
  ["stt", "STT"],
  ["llm", "LLM"],
  ["phrase", "phrase"],
  ["tts", "TTS"],
  ["network", "network"],
];
const DASH = "–";

const known = (number) => typeof number === "number" && Number.isFinite(number);
const milliseconds = (number) => (known(number) ? `${Math.round(number)} ms` : DASH);

function median(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

export class Figures {
  #find;
  #responses = [];
  #voiceMs = null;

  /** @param find gives the element of an id. */
  constructor(find) {
    this.#find = find;
    this.clear();
  }

  clear() {
    this.#responses = [];
    this.#voiceMs = null;
    for (const id of ["response", "to-duck", "to-pause", "to-cancel", "decision", "rtt", "jitter", "loss"]) {
      this.#find(id).textContent = DASH;
    }
    this.#find("response-note").textContent = "";
    this.#find("parts-bar").ariaLabel = "No response measured yet";
    this.#drawParts({});
  }

  response({ response_ms: totalMs, parts }) {
    if (!known(totalMs)) return;
    this.#responses.push(totalMs);
    if (this.#responses.length > 500) this.#responses.shift();
    const count = this.#responses.length;
    this.#find("response").textContent = milliseconds(totalMs);
    this.#find("response-note").textContent = count > 1 ? `median ${milliseconds(median(this.#responses))} of ${count}` : "";
    this.#drawParts(parts ?? {});
    const told = PARTS.filter(([key]) => known(parts?.[key])).map(([key, name]) => `${name} ${milliseconds(parts[key])}`);
    this.#find("parts-bar").ariaLabel = `Response ${milliseconds(totalMs)}: ${told.join(", ")}`;
  }

  voice(on) {
    if (on) this.#voiceMs = performance.now();
  }

  /** Both ends of the time are the agent's messages, so the way to this page does not count. */
  decision({ action, cause }) {
    const sinceMs = this.#voiceMs === null ? null : performance.now() - this.#voiceMs;
    const place = { duck: "to-duck", pause: "to-pause", cancel: "to-cancel" }[action];
    if (place && sinceMs !== null) this.#find(place).textContent = milliseconds(sinceMs);
    this.#find("decision").textContent = cause ? `${action} (${cause})` : String(action);
  }

  network({ rttMs, jitterMs, lost, received }) {
    this.#find("rtt").textContent = milliseconds(rttMs);
    this.#find("jitter").textContent = milliseconds(jitterMs);
    const all = lost + received;
    this.#find("loss").textContent = all ? `${((100 * lost) / all).toFixed(1)} %` : DASH;
  }

  #drawParts(parts) {
    const bars = [];
    const rows = [];
    for (const [key, name] of PARTS) {
      const bar = document.createElement("i");
      bar.className = `part-${key}`;
      bar.style.flexGrow = known(parts[key]) ? Math.max(0, parts[key]) : 0;
      bars.push(bar);
      const row = document.createElement("div");
      const swatch = document.createElement("i");
      swatch.className = `part-${key}`;
      const term = document.createElement("dt");
      term.append(swatch, name);
      const value = document.createElement("dd");
      value.textContent = milliseconds(parts[key]);
      row.append(term, value);
      rows.push(row);
    }
    this.#find("parts-bar").replaceChildren(...bars);
    this.#find("parts").replaceChildren(...rows);
  }
}
