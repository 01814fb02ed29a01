// The last seconds of a call as a picture: both levels, what the agent did, and the decisions. Knows nothing of calls.

const SLOT_MS = 50;
const KEPT_MS = 30_000;
const LABELS = { duck: 0, pause: 1, resume: 2, cancel: 2 };
const COLOURS = { duck: "--warn", pause: "--pause", resume: "--agent", cancel: "--danger" };
const HEAD = 44;
const STRIP = 6;

export class Timeline {
  #canvas;
  #brush;
  #colours = {};
  #slots = [];
  #marks = [];
  #states = [];
  #voices = [];
  #startMs = 0;

  constructor(canvas) {
    this.#canvas = canvas;
    this.#brush = canvas.getContext("2d");
    const redraw = () => this.draw();
    new ResizeObserver(redraw).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  clear() {
    this.#slots = [];
    this.#marks = [];
    this.#states = [];
    this.#voices = [];
    this.#startMs = performance.now();
  }

  levels(caller, agent) {
    const slot = Math.floor((performance.now() - this.#startMs) / SLOT_MS);
    const last = this.#slots.at(-1);
    if (last?.slot === slot) {
      last.caller = Math.max(last.caller, caller);
      last.agent = Math.max(last.agent, agent);
    } else this.#slots.push({ slot, caller, agent });
    this.#forget();
  }

  decision(action) {
    if (action in LABELS) this.#marks.push({ atMs: this.#nowMs(), action });
  }

  state(state) {
    this.#states.push({ atMs: this.#nowMs(), state });
  }

  voice(on) {
    this.#voices.push({ atMs: this.#nowMs(), state: on ? "voice" : "none" });
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const scale = window.devicePixelRatio || 1;
    if (this.#canvas.width !== Math.round(width * scale) || this.#canvas.height !== Math.round(height * scale)) {
      this.#canvas.width = Math.round(width * scale);
      this.#canvas.height = Math.round(height * scale);
    }
    this.#brush.setTransform(scale, 0, 0, scale, 0, 0);
    this.#brush.clearRect(0, 0, width, height);
    this.#brush.font = "11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
    const style = getComputedStyle(this.#canvas);
    const names = ["--line", "--muted", "--you", "--agent", "--warn", "--pause", "--danger", "--you-soft"];
    for (const name of names) this.#colours[name] = style.getPropertyValue(name).trim();
    const shownMs = width < 480 ? 8_000 : 14_000;
    const endMs = (this.#slots.at(-1)?.slot ?? 0) * SLOT_MS + SLOT_MS;
    const x = (atMs) => width - ((endMs - atMs) / shownMs) * width;
    const lane = (height - HEAD - 2 * STRIP - 8) / 2;
    const frame = { width, height, x, endMs, lane, bar: Math.max(1, (SLOT_MS / shownMs) * width - 1) };
    this.#drawSpans(frame);
    this.#drawLevels(frame);
    this.#drawSeconds(frame);
    this.#drawMarks(frame);
  }

  #nowMs() {
    return performance.now() - this.#startMs;
  }

  #forget() {
    const before = this.#nowMs() - KEPT_MS;
    while (this.#slots.length && this.#slots[0].slot * SLOT_MS < before) this.#slots.shift();
    while (this.#marks.length && this.#marks[0].atMs < before) this.#marks.shift();
    // The last span that began before the window still reaches into it.
    for (const spans of [this.#states, this.#voices]) while (spans.length > 1 && spans[1].atMs < before) spans.shift();
  }

  #drawSpans({ height, x, endMs, lane }) {
    const paint = (spans, colours, y, thickness) =>
      spans.forEach(({ atMs, state }, index) => {
        if (!colours[state]) return;
        this.#brush.fillStyle = this.#colours[colours[state]];
        this.#brush.fillRect(x(atMs), y, x(spans[index + 1]?.atMs ?? endMs) - x(atMs), thickness);
      });
    paint(this.#voices, { voice: "--you-soft" }, HEAD, lane);
    paint(this.#states, { thinking: "--warn", speaking: "--agent", paused: "--pause" }, height - STRIP, STRIP);
  }

  #drawLevels({ width, x, lane, bar }) {
    const brush = this.#brush;
    const upper = HEAD + lane / 2;
    const lower = HEAD + lane + 8 + lane / 2;
    brush.fillStyle = this.#colours["--line"];
    brush.fillRect(0, upper - 0.5, width, 1);
    brush.fillRect(0, lower - 0.5, width, 1);
    for (const [side, middle, colour] of [["caller", upper, "--you"], ["agent", lower, "--agent"]]) {
      brush.fillStyle = this.#colours[colour];
      for (const slot of this.#slots) {
        const tall = Math.max(1, slot[side] * (lane - 4));
        brush.fillRect(x(slot.slot * SLOT_MS), middle - tall / 2, bar, tall);
      }
    }
  }

  #drawSeconds({ height, x, endMs }) {
    this.#brush.fillStyle = this.#colours["--line"];
    for (let second = Math.floor(endMs / 1000); this.#slots.length && second >= 0 && x(second * 1000) > 0; second--) {
      this.#brush.fillRect(x(second * 1000), height - 2 * STRIP, 1, STRIP - 2);
    }
  }

  /** Labels stand in one row for each kind, since a duck and its pause are a tenth of a second apart. */
  #drawMarks({ width, height, x }) {
    const brush = this.#brush;
    for (const { atMs, action } of this.#marks) {
      const at = x(atMs);
      const top = 2 + LABELS[action] * 14;
      brush.fillStyle = this.#colours[COLOURS[action]];
      brush.fillRect(at - 0.75, top, 1.5, height - STRIP - top);
      const room = brush.measureText(action).width + 6;
      brush.fillText(action, at + room > width ? at - room : at + 5, top + 9);
    }
  }
}
