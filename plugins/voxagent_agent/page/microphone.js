// The microphone: opening, choosing, muting; and the level of any stream. Knows nothing of calls.

import { insecureOrigin, microphoneGone, microphoneTrouble } from "./words.js";

export class Microphone {
  stream = null;
  muted = false;
  #onGone;
  #opening = 0;

  /** @param onGone called with the trouble when the device disappears. */
  constructor(onGone) {
    this.#onGone = onGone;
  }

  /**
   * Opens the device, closing the one open before. `processing`: which of the browser's processors are on.
   * Returns null when it was closed or opened anew meanwhile: people may take long to give permission.
   */
  async open(deviceId, processing) {
    if (!window.isSecureContext || !navigator.mediaDevices) throw insecureOrigin();
    const device = deviceId ? { deviceId: { exact: deviceId } } : {};
    const mine = ++this.#opening;
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: { ...device, ...processing } });
    } catch (error) {
      throw microphoneTrouble(error);
    }
    if (mine !== this.#opening) {
      for (const track of stream.getTracks()) track.stop();
      return null;
    }
    this.close();
    this.stream = stream;
    const [track] = stream.getAudioTracks();
    track.onended = () => this.#onGone(microphoneGone());
    this.mute(this.muted);
    return stream;
  }

  mute(muted) {
    this.muted = muted;
    for (const track of this.stream?.getAudioTracks() ?? []) track.enabled = !muted;
  }

  close() {
    this.#opening += 1;
    for (const track of this.stream?.getTracks() ?? []) {
      track.onended = null;
      track.stop();
    }
    this.stream = null;
  }

  /** The microphones by name; browsers tell the names only after permission. */
  async list() {
    const devices = (await navigator.mediaDevices?.enumerateDevices().catch(() => [])) ?? [];
    return devices.filter(({ kind, label }) => kind === "audioinput" && label);
  }
}

const FLOOR_DB = -60;

/** How loud a stream is: `read()` gives 0 (-60 dB or less) to 1 (full scale). */
export class Level {
  #source;
  #analyser;
  #samples;

  constructor(context, stream) {
    this.#analyser = context.createAnalyser();
    this.#analyser.fftSize = 1024;
    this.#samples = new Float32Array(this.#analyser.fftSize);
    this.#source = context.createMediaStreamSource(stream);
    this.#source.connect(this.#analyser);
  }

  read() {
    this.#analyser.getFloatTimeDomainData(this.#samples);
    const power = this.#samples.reduce((sum, sample) => sum + sample * sample, 0) / this.#samples.length;
    return Math.min(1, Math.max(0, 1 - (10 * Math.log10(power + 1e-12)) / FLOOR_DB));
  }

  close() {
    this.#source.disconnect();
  }
}
