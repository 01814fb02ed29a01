// The conversation in bubbles: what the caller said, and of the agent's words which were heard. Knows nothing of calls.

const MOST_BUBBLES = 200;
const MOST_CHARACTERS = 100_000;
const PENDING = "pending";
const HEARD = "heard";
const PARTLY = "partly";
const UNHEARD = "unheard";

const isSpace = (character) => /^\s$/u.test(character);
const solid = (text) => [...(text ?? "")].filter((character) => !isSpace(character));

/** One reply: its characters (code points, as offsets count them) and what became of each. */
export class Turn {
  #characters = [];
  #marks = [];

  release(start, text) {
    if (!inRange(start)) return;
    [...text].forEach((character, index) => (this.#characters[start + index] = character));
  }

  hear(start, end) {
    if (!inRange(start) || !inRange(end)) return;
    this.#mark(start, end, HEARD);
  }

  hearAll() {
    this.#mark(0, this.#characters.length, HEARD);
  }

  /**
   * Splits the turn where it was cut. `unheard` begins with the word partly heard, and may hold text that was never
   * released. White space around the three is not told apart, so only the other characters are counted.
   */
  cut({ heard, partly, unheard }) {
    const rest = solid(unheard);
    const begun = solid(partly);
    if (begun.some((character, index) => rest[index] !== character)) rest.unshift(...begun);
    const heardCount = solid(heard).length;
    const partlyCount = heardCount + begun.length;
    const shown = solid(this.text).length;
    if (heardCount + rest.length > shown) this.#append(unheard, heardCount + rest.length - shown);
    let count = 0;
    for (let at = 0; at < this.#characters.length; at++) {
      if (isSpace(this.#characters[at] ?? " ")) continue;
      this.#marks[at] = count < heardCount ? HEARD : count < partlyCount ? PARTLY : UNHEARD;
      count += 1;
    }
  }

  get text() {
    return Array.from(this.#characters, (character) => character ?? " ").join("").replace(/ {2,}/g, " ").trim();
  }

  /** The text in runs of one mark each: `[{mark, text}]`. White space belongs to a run it lies inside of. */
  get runs() {
    const runs = [];
    let gap = "";
    for (let at = 0; at < this.#characters.length; at++) {
      const character = this.#characters[at] ?? " ";
      if (isSpace(character)) {
        gap ||= /\n/.test(character) ? "\n" : " ";
        continue;
      }
      const mark = this.#marks[at] ?? PENDING;
      const last = runs.at(-1);
      if (last?.mark === mark) last.text += gap + character;
      else {
        if (gap && last) runs.push({ mark: null, text: gap });
        runs.push({ mark, text: character });
      }
      gap = "";
    }
    return runs;
  }

  #mark(start, end, mark) {
    for (let at = start; at < end; at++) this.#marks[at] = mark;
  }

  /** Adds the last `count` characters of a text, white space not counted. */
  #append(text, count) {
    const characters = [...text];
    let at = characters.length;
    for (let left = count; at > 0 && left > 0; at--) if (!isSpace(characters[at - 1])) left -= 1;
    while (at > 0 && isSpace(characters[at - 1])) at -= 1;
    this.#characters.push(...characters.slice(at));
  }
}

function inRange(offset) {
  return Number.isInteger(offset) && offset >= 0 && offset < MOST_CHARACTERS;
}

export class Captions {
  #log;
  #announcer;
  #turns = new Map();
  #caller = null;
  #stuck = true;
  #hint;

  constructor(log, announcer) {
    this.#log = log;
    this.#hint = log.firstElementChild;
    this.#announcer = announcer;
    log.addEventListener("scroll", () => (this.#stuck = log.scrollHeight - log.scrollTop - log.clientHeight < 48), {
      passive: true,
    });
  }

  /** Returns false for a message that is no caption. */
  show(message) {
    switch (message.event) {
      case "user":
        this.#said(String(message.text ?? ""), message.final !== false);
        return true;
      case "phrase":
        return this.#change(message.turn, (turn) => turn.release(message.start, String(message.text ?? "")));
      case "word":
        return this.#change(message.turn, (turn) => turn.hear(message.start, message.end));
      case "spoken":
        this.#change(message.turn, (turn) => turn.hearAll(), false);
        return this.#announce(`Agent: ${this.#turns.get(message.turn).turn.text}`);
      case "cut":
        this.#change(message.turn, (turn) => turn.cut(message), false);
        return this.#announce(`Agent, cut off: ${[message.heard, message.partly].filter(Boolean).join(" ")}`);
      case "backchannel":
        return this.note(`You, letting the agent go on: ${message.text}`);
      default:
        return false;
    }
  }

  /** A remark between the bubbles. */
  note(text) {
    const line = this.#add("p", "note");
    line.textContent = text;
    this.#follow();
    return true;
  }

  /** A new call: an empty page. */
  clear() {
    this.forget();
    this.#log.replaceChildren(this.#hint);
    this.#announcer.replaceChildren();
  }

  /** What was said stays to be read, but turns are counted anew. */
  forget() {
    this.#turns.clear();
    this.#caller = null;
  }

  #said(text, final) {
    if (!text.trim()) return;
    this.#caller ??= this.#bubble("caller", "You");
    this.#caller.textContent = text;
    this.#caller.parentElement.classList.toggle("interim", !final);
    this.#follow();
    if (final) {
      this.#caller = null;
      this.#announce(`You: ${text}`);
    }
  }

  #change(number, change, sounding = true) {
    if (!this.#turns.has(number)) {
      this.#turns.set(number, { turn: new Turn(), place: this.#bubble("agent", "Agent") });
    }
    const { turn, place } = this.#turns.get(number);
    change(turn);
    place.parentElement.classList.toggle("sounding", sounding);
    place.replaceChildren(
      ...turn.runs.map(({ mark, text }) => {
        if (mark === null) return document.createTextNode(text);
        const run = document.createElement(mark === UNHEARD ? "s" : "span");
        run.className = mark;
        run.textContent = text;
        return run;
      }),
    );
    this.#follow();
    return true;
  }

  #bubble(side, name) {
    const bubble = this.#add("div", `bubble ${side}`);
    const who = document.createElement("b");
    who.textContent = name;
    const place = document.createElement("p");
    place.dir = "auto";
    bubble.append(who, place);
    return place;
  }

  #add(tag, names) {
    this.#hint.remove();
    const element = document.createElement(tag);
    element.className = names;
    this.#log.append(element);
    while (this.#log.childElementCount > MOST_BUBBLES) this.#log.firstElementChild.remove();
    return element;
  }

  /** Screen readers hear whole lines once, not each word as it turns solid. */
  #announce(text) {
    const line = document.createElement("p");
    line.textContent = text;
    this.#announcer.append(line);
    while (this.#announcer.childElementCount > 5) this.#announcer.firstElementChild.remove();
    return true;
  }

  /** Keeps the newest line in view unless the reader scrolled back. */
  #follow() {
    if (this.#stuck) this.#log.scrollTop = this.#log.scrollHeight;
  }
}
