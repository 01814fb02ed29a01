// What can go wrong, in words: the cause, and what to do about it. Knows nothing of the page.

export class Trouble extends Error {
  /** `lasting`: trying again by oneself is pointless. `retryS`: when the agent asked to be called again. */
  constructor(title, cure, { lasting = false, retryS = null } = {}) {
    super(title);
    this.cure = cure;
    this.lasting = lasting;
    this.retryS = retryS;
  }
}

export function insecureOrigin() {
  return new Trouble(
    "The browser gives no microphone to this address.",
    "Browsers allow it on https:// and on localhost only. Open the page through one of these.",
    { lasting: true },
  );
}

export function microphoneTrouble(error) {
  switch (error.name) {
    case "NotAllowedError":
    case "SecurityError":
      return new Trouble(
        "The microphone is not allowed.",
        "Allow it for this page in the browser's address bar, and for the browser in the system's privacy settings. Then start again.",
      );
    case "NotFoundError":
    case "OverconstrainedError":
      return new Trouble("No microphone was found.", "Plug one in, or choose another one below.");
    case "NotReadableError":
    case "AbortError":
      return new Trouble("The microphone does not open.", "Another program may hold it. Close that one, or choose another microphone.");
    default:
      return new Trouble("The microphone does not open.", `The browser says: ${error.message || error.name}`);
  }
}

export function microphoneGone() {
  return new Trouble("The microphone went away.", "The agent hears nothing. Plug it in again or choose another one.");
}

export function unreachable() {
  return new Trouble("The agent does not answer.", `Nothing replies at ${location.host}. Check that the agent runs and that you are online.`);
}

export function noPath() {
  return new Trouble(
    "No way for the sound.",
    "The agent answered, but no media connection came about: a firewall may block UDP. Try another network, or give the agent a TURN server.",
  );
}

export function lost(seconds) {
  return new Trouble("The connection was lost.", `It did not come back within ${seconds} seconds. Start a new call.`, { lasting: true });
}

export function silentPlayer() {
  return new Trouble("The browser does not play the agent's voice.", "Click anywhere on the page to let it.");
}

/** The refusal in a reply that is not 2xx. */
export async function refusal(reply) {
  const body = await reply.json().catch(() => ({}));
  const detail = typeof body.detail === "string" ? body.detail : `The agent replied with status ${reply.status}.`;
  const seconds = Number.parseFloat(reply.headers.get("Retry-After"));
  const retryS = Number.isFinite(seconds) && seconds >= 0 ? Math.ceil(seconds) : null;
  if (reply.status === 503) {
    const when = retryS === null ? "Try again in a little while." : `Try again in ${retryS} ${retryS === 1 ? "second" : "seconds"}.`;
    return new Trouble("The agent is full.", `${sentence(detail)} ${when}`, { retryS });
  }
  return new Trouble("The agent refused the call.", sentence(detail), { lasting: reply.status < 500 });
}

function sentence(text) {
  const whole = text.trim();
  const capital = whole.charAt(0).toUpperCase() + whole.slice(1);
  return /[.!?]$/.test(capital) ? capital : `${capital}.`;
}
