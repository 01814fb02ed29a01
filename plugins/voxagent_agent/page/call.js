// One call: the peer connection, its data channel, and the way back after a loss. Knows nothing of the page.

import { Trouble, lost, noPath, refusal, unreachable } from "./words.js";

const ANSWER_MS = 10_000;
const FIRST_PATH_MS = 20_000;
const PATH_MS = 8_000;
const LOST_MS = 2_000;
const GIVE_UP_MS = 20_000;
const RETRY_MS = 1_000;

async function ask(method, path, body, signal) {
  let reply;
  try {
    reply = await fetch(path, {
      method,
      headers: body ? { "Content-Type": "application/json" } : {},
      body: body ? JSON.stringify(body) : undefined,
      signal: AbortSignal.any([signal, AbortSignal.timeout(ANSWER_MS)]),
    });
  } catch (error) {
    signal.throwIfAborted();
    throw unreachable();
  }
  if (!reply.ok) throw await refusal(reply);
  return reply.json().catch(() => ({}));
}

/** The agent's name, its ICE servers and how many calls it carries. */
export function configuration(signal = new AbortController().signal) {
  return ask("GET", "api/config", null, signal);
}

function wait(ms, signal) {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}

/** Settles when the media path stands, or with the trouble that there is none. */
function path(pc, limitMs, signal) {
  return new Promise((resolve, reject) => {
    const settle = () => {
      if (pc.connectionState === "connected") resolve();
      if (["failed", "closed"].includes(pc.connectionState)) reject(noPath());
    };
    pc.addEventListener("connectionstatechange", settle);
    wait(limitMs, signal).then(() => reject(noPath()), reject);
    settle();
  });
}

export class Call {
  #on;
  #microphone;
  #iceServers;
  #pc = null;
  #channel = null;
  #pcId = null;
  #pings = 0;
  #timers = [];
  #lossTimer = null;
  #abort = new AbortController();

  /**
   * @param {MediaStream} microphone
   * @param {RTCIceServer[]} iceServers
   * @param on `phase(name, trouble)` with "live", "reconnecting" or "ended", `message(object)`, `stream(MediaStream)`,
   *   `network({rttMs, jitterMs, lost, received})`.
   */
  constructor(microphone, iceServers, on) {
    this.#microphone = microphone;
    this.#iceServers = iceServers;
    this.#on = on;
  }

  /** Rings. Throws the trouble when the call does not come about. */
  async start() {
    try {
      await this.#connect(FIRST_PATH_MS);
      this.#on.phase("live");
    } catch (error) {
      this.hangUp();
      throw error;
    }
  }

  hangUp() {
    this.#abort.abort(new Trouble("Hung up.", ""));
    this.#drop();
  }

  get over() {
    return this.#abort.signal.aborted;
  }

  /** Changes the microphone without a new call. */
  async speakThrough(stream) {
    this.#microphone = stream;
    await this.#pc?.getSenders()[0]?.replaceTrack(stream.getAudioTracks()[0] ?? null);
  }

  #drop() {
    for (const timer of this.#timers) clearTimeout(timer);
    this.#timers = [];
    this.#lossTimer = null;
    if (this.#pc) this.#pc.onconnectionstatechange = null;
    if (this.#channel) this.#channel.onclose = null;
    this.#pc?.close();
    this.#pc = this.#channel = null;
  }

  async #connect(limitMs) {
    this.#drop();
    const signal = this.#abort.signal;
    const restart = this.#pcId === null ? {} : { pc_id: this.#pcId, restart_pc: true };
    const pc = (this.#pc = new RTCPeerConnection({ iceServers: this.#iceServers, bundlePolicy: "max-bundle" }));
    const trickle = new Trickle(signal);
    pc.onicecandidate = ({ candidate }) => this.#pc === pc && trickle.add(candidate);
    pc.ontrack = ({ streams, track }) => this.#on.stream(streams[0] ?? new MediaStream([track]));
    const [track] = this.#microphone.getAudioTracks();
    pc.addTransceiver(track ?? "audio", { direction: "sendrecv", streams: [this.#microphone] });
    this.#talk(pc, pc.createDataChannel("chat", { ordered: true }));
    await pc.setLocalDescription();
    const { sdp, type } = pc.localDescription;
    // A client of the agent's own language is spared Pipecat's.
    const requestData = { client: "voxagent" };
    const answer = await ask("POST", "api/offer", { sdp, type, requestData, ...restart }, signal);
    signal.throwIfAborted();
    this.#pcId = answer.pc_id;
    trickle.open(answer.pc_id);
    await pc.setRemoteDescription({ sdp: answer.sdp, type: answer.type });
    await path(pc, limitMs, signal);
    pc.onconnectionstatechange = () => this.#watch(pc);
    this.#watch(pc);
    this.#timers.push(setInterval(() => this.#measure(pc), 1000));
  }

  #talk(pc, channel) {
    this.#channel = channel;
    channel.onmessage = ({ data }) => {
      let message;
      try {
        message = JSON.parse(data);
      } catch {
        return;
      }
      if (message?.type === "voxagent") this.#on.message(message);
    };
    channel.onopen = () => {
      const ping = () => channel.readyState === "open" && channel.send(`ping ${++this.#pings}`);
      ping();
      this.#timers.push(setInterval(ping, 1000));
    };
    // An agent that goes away closes the channel at once, long before ICE finds out.
    channel.onclose = () => this.#suspect(pc, LOST_MS);
  }

  #watch(pc) {
    if (pc.connectionState === "connected" && this.#channel?.readyState !== "closed") {
      clearTimeout(this.#lossTimer);
      this.#lossTimer = null;
    } else if (pc.connectionState === "failed") {
      this.#suspect(pc, 0);
    } else if (pc.connectionState !== "connecting") {
      this.#suspect(pc, LOST_MS);
    }
  }

  #suspect(pc, ms) {
    if (this.#lossTimer !== null && ms > 0) return;
    clearTimeout(this.#lossTimer);
    this.#lossTimer = setTimeout(() => {
      this.#lossTimer = null;
      if (this.#pc === pc && !this.over) this.#recover();
    }, ms);
    this.#timers.push(this.#lossTimer);
  }

  async #recover() {
    this.#on.phase("reconnecting");
    const until = performance.now() + GIVE_UP_MS;
    while (performance.now() < until) {
      try {
        await this.#connect(Math.min(PATH_MS, until - performance.now()));
        this.#on.phase("live");
        return;
      } catch (error) {
        if (this.over) return;
        if (error.lasting) return this.#end(error);
        const pauseMs = Math.max(RETRY_MS, (error.retryS ?? 0) * 1000);
        await wait(Math.min(pauseMs, Math.max(0, until - performance.now())), this.#abort.signal).catch(() => {});
        if (this.over) return;
      }
    }
    this.#end(lost(GIVE_UP_MS / 1000));
  }

  #end(trouble) {
    this.hangUp();
    this.#on.phase("ended", trouble);
  }

  async #measure(pc) {
    const reports = [...(await pc.getStats()).values()];
    const transport = reports.find(({ type }) => type === "transport");
    const pair = reports.find(({ id }) => id === transport?.selectedCandidatePairId);
    const sound = reports.find(({ type, kind }) => type === "inbound-rtp" && kind === "audio");
    if (this.#pc !== pc) return;
    this.#on.network({
      rttMs: pair?.currentRoundTripTime === undefined ? null : pair.currentRoundTripTime * 1000,
      jitterMs: sound?.jitter === undefined ? null : sound.jitter * 1000,
      lost: Math.max(0, sound?.packetsLost ?? 0),
      received: sound?.packetsReceived ?? 0,
    });
  }
}

/** Sends candidates as they come; those found before the agent named the call wait for the name. */
class Trickle {
  #signal;
  #pcId = null;
  #waiting = [];

  constructor(signal) {
    this.#signal = signal;
  }

  add(candidate) {
    this.#waiting.push({
      candidate: candidate?.candidate ?? "",
      sdp_mid: candidate?.sdpMid ?? "0",
      sdp_mline_index: candidate?.sdpMLineIndex ?? 0,
    });
    this.#send();
  }

  open(pcId) {
    this.#pcId = pcId;
    this.#send();
  }

  #send() {
    if (this.#pcId === null || !this.#waiting.length) return;
    const candidates = this.#waiting.splice(0);
    // The agent may find the path without them; if not, that is told as "no way for the sound".
    ask("PATCH", "api/offer", { pc_id: this.#pcId, candidates }, this.#signal).catch(() => {});
  }
}
