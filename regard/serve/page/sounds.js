/* A sound to be read: recorded, dropped or chosen; its wave and spectrum, and attention over them. */

import { colourOf, paintCanvas, ramp, redrawWith } from "./colours.js";
import { button, make, setStyle, toast } from "./dom.js";
import { acceptDrops, dataUrl, decodeSound, spectrogram, wav } from "./media.js";

const LARGEST_FILE = 25e6; // bytes
const LONGEST = 60; // seconds of a recording
const WAVE = 56; // pixels of the wave's height
const SPECTRUM = 150;
const WEIGHTS = 34;

export class SoundInput {
  constructor(model, { go, changed }) {
    this.rate = model.regard.rate ?? 16000;
    this.changed = changed;
    this.samples = null;
    this.name = "";
    this.blob = null;
    this.recorder = null;
    this.intervals = [];
    this.audio = new Audio();
    this.file = make("input", { type: "file", accept: "audio/*,.wav,.flac,.ogg,.mp3", class: "hidden", tabindex: -1, "aria-hidden": "true", id: "sound-file" });
    this.file.addEventListener("change", () => this.take(this.file.files[0]));
    this.canvas = make("canvas", { class: "wave", role: "img", "aria-label": "Wave and spectrum of the sound" });
    this.note = make("p", { class: "hint" });
    this.meter = make("i", {});
    this.level = make("div", { class: "meter", role: "meter", "aria-label": "Level of the microphone", "aria-valuemin": 0, "aria-valuemax": 100, hidden: true }, this.meter);
    this.record_ = button("Record", { icon: "mic", id: "record" }, () => this.onRecord());
    this.choose = button("Choose a file", { icon: "file" }, () => this.file.click());
    this.play = button("Play", { icon: "play", id: "play", hidden: true }, () => this.onPlay());
    this.drop = make("div", { class: "drop" }, make("b", {}, "Record something, or drop a sound here"),
      make("span", { class: "muted" }, `speech, at most ${LONGEST} seconds; it is read at ${(this.rate / 1000).toLocaleString("en")} kHz`));
    this.board = make("div", { class: "board" }, this.drop);
    this.node = make("div", { class: "pane source" }, this.board, this.level,
      make("div", { class: "row between pane-foot" }, make("span", { class: "row" }, this.record_, this.choose, this.play, this.note), go), this.file);
    acceptDrops(this.node, "audio/", (file) => this.take(file));
    this.weights = null;
    this.effects = null;
    new ResizeObserver(() => this.paint()).observe(this.board);
    redrawWith(this.canvas, () => {
      this.image = null;
      this.paint();
    });
  }

  destroy() {
    this.audio.pause();
    this.stopRecording();
  }

  // Getting a sound -----------------------------------------------------------------------------

  async take(file) {
    this.file.value = "";
    if (!file) return;
    if (file.size > LARGEST_FILE) {
      toast("This file is too large: at most 25 MB.");
      return;
    }
    try {
      await this.setSound(file, file.name);
    } catch (error) {
      toast(error.message);
    }
  }

  /** An example. */
  give(file) {
    return this.take(file);
  }

  /** A WAV file is sent as it is, anything else as the samples that the browser decoded. */
  async setSound(blob, name) {
    const samples = await decodeSound(await blob.arrayBuffer(), this.rate);
    const isWav = /wav/.test(blob.type) || /\.wav$/i.test(name);
    this.samples = samples;
    this.blob = isWav ? blob : wav(samples, this.rate);
    this.name = name;
    this.image = null;
    this.intervals = [];
    URL.revokeObjectURL(this.audio.src);
    this.audio.src = URL.createObjectURL(wav(samples, this.rate));
    this.play.hidden = false;
    this.note.textContent = `${name}, ${this.seconds.toFixed(1)} s`;
    this.board.replaceChildren(this.canvas);
    this.tint(null, null);
    this.changed();
  }

  get seconds() {
    return (this.samples?.length ?? 0) / this.rate;
  }

  onRecord() {
    if (this.recorder) this.stopRecording();
    else this.startRecording();
  }

  async startRecording() {
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    } catch (error) {
      toast(error?.name === "NotFoundError" ? "There is no microphone." : "The browser did not let the page use the microphone.");
      return;
    }
    const parts = [];
    const recorder = new MediaRecorder(stream);
    this.recorder = recorder;
    recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
    recorder.addEventListener("stop", async () => {
      stream.getTracks().forEach((track) => track.stop());
      this.paintRecording(false);
      try {
        await this.setSound(new Blob(parts, { type: recorder.mimeType }), "recording");
      } catch (error) {
        toast(error.message);
      }
    });
    recorder.start();
    this.paintRecording(true);
    this.watchLevel(stream, recorder);
    setTimeout(() => recorder === this.recorder && this.stopRecording(), 1000 * LONGEST);
  }

  stopRecording() {
    this.recorder?.stop();
    this.recorder = null;
  }

  paintRecording(isOn) {
    this.level.hidden = !isOn;
    this.record_.querySelector("span").textContent = isOn ? "Stop recording" : "Record";
    this.record_.classList.toggle("recording", isOn);
  }

  /** The meter moves with the loudest sample of the last moment. */
  watchLevel(stream, recorder) {
    const context = new AudioContext();
    const analyser = context.createAnalyser();
    analyser.fftSize = 1024;
    context.createMediaStreamSource(stream).connect(analyser);
    const values = new Float32Array(analyser.fftSize);
    const started = performance.now();
    const step = () => {
      if (recorder.state !== "recording") {
        context.close();
        return;
      }
      analyser.getFloatTimeDomainData(values);
      const peak = values.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
      const share = Math.max(0, 1 + Math.log10(peak + 1e-4) / 2.5); // 50 dB
      setStyle(this.meter, { width: `${Math.round(100 * Math.min(1, share))}%` });
      this.level.setAttribute("aria-valuenow", Math.round(100 * Math.min(1, share)));
      this.note.textContent = `${((performance.now() - started) / 1000).toFixed(1)} s`;
      requestAnimationFrame(step);
    };
    step();
  }

  onPlay() {
    if (!this.audio.paused) {
      this.audio.pause();
      return;
    }
    this.audio.play();
    const follow = () => {
      this.paint();
      if (!this.audio.paused) requestAnimationFrame(follow);
    };
    follow();
  }

  // What a desk asks for ------------------------------------------------------------------------

  isReady() {
    return this.samples !== null && this.recorder === null;
  }

  canAsk(record) {
    return this.samples !== null && record.sound === this.name;
  }

  record() {
    return { sound: this.name, seconds: Number(this.seconds.toFixed(2)) };
  }

  async value() {
    return { sound: await dataUrl(new Blob([this.blob], { type: "audio/wav" })) };
  }

  read() {}

  show(record) {
    if (this.canAsk(record)) return;
    this.samples = null;
    this.name = "";
    this.play.hidden = true;
    this.note.textContent = "";
    this.board.replaceChildren(this.drop);
    this.changed();
  }

  source() {
    return {
      begin: (names) => { this.intervals = names.map(intervalOf); },
      tint: (weights, effects) => this.tint(weights, effects),
      onPoint: (act) => this.onPoint(act),
    };
  }

  tint(weights, effects) {
    this.weights = weights;
    this.effects = effects;
    this.paint();
  }

  onPoint(act) {
    const timeAt = (event) => ((event.clientX - this.canvas.getBoundingClientRect().left) / this.canvas.clientWidth) * this.seconds;
    this.canvas.addEventListener("pointermove", (event) => {
      const time = timeAt(event);
      const place = this.intervals.findIndex((interval) => interval && interval[0] <= time && time < interval[1]);
      act(place < 0 ? null : place);
    });
    this.canvas.addEventListener("pointerleave", () => act(null));
    this.canvas.addEventListener("click", (event) => { this.audio.currentTime = timeAt(event); });
  }

  // Drawing -------------------------------------------------------------------------------------

  paint() {
    if (!this.samples || !this.canvas.isConnected) return;
    const width = Math.max(200, this.board.clientWidth);
    paintCanvas(this.canvas, width, WAVE + SPECTRUM + WEIGHTS, (context) => {
      this.paintWave(context, width);
      this.image ??= spectrumImage(spectrogram(this.samples, this.rate));
      context.drawImage(this.image, 0, WAVE, width, SPECTRUM);
      this.paintWeights(context, width);
      this.paintPlayhead(context, width);
    });
  }

  paintWave(context, width) {
    context.fillStyle = colourOf("--muted");
    const middle = WAVE / 2;
    for (let x = 0; x < width; x++) {
      const from = Math.floor((x / width) * this.samples.length);
      const to = Math.max(from + 1, Math.floor(((x + 1) / width) * this.samples.length));
      let peak = 0;
      for (let i = from; i < to; i++) peak = Math.max(peak, Math.abs(this.samples[i]));
      const height = Math.max(1, peak * (WAVE - 6));
      context.fillRect(x, middle - height / 2, 0.8, height);
    }
  }

  /** Blue over the times a word attended to, and how much below; orange for what it depends on. */
  paintWeights(context, width) {
    if (!this.weights) return;
    const x = (time) => (time / this.seconds) * width;
    this.intervals.forEach((interval, place) => {
      const weight = this.weights[place];
      if (!interval || !(weight > 0.004)) return;
      const [left, right] = interval.map(x);
      context.fillStyle = colourOf("--accent");
      context.globalAlpha = 0.55 * weight;
      context.fillRect(left, 0, right - left, WAVE + SPECTRUM);
      context.globalAlpha = 1;
      const height = Math.max(1, weight * (WEIGHTS - 6));
      context.fillRect(left, WAVE + SPECTRUM + WEIGHTS - height, Math.max(1, right - left - 0.5), height);
    });
    if (!this.effects) return;
    context.fillStyle = colourOf("--effect");
    this.intervals.forEach((interval, place) => {
      if (!interval) return;
      const [left, right] = interval.map(x);
      const height = this.effects[place] * (WEIGHTS - 6);
      context.fillRect(left, WAVE + SPECTRUM + WEIGHTS - height, Math.max(1, (right - left) * 0.4), height);
    });
  }

  paintPlayhead(context, width) {
    if (this.audio.paused && this.audio.currentTime === 0) return;
    context.fillStyle = colourOf("--ink");
    context.fillRect((this.audio.currentTime / this.seconds) * width, 0, 1.5, WAVE + SPECTRUM);
  }
}

/** "0.36–0.40 s" as two numbers. */
export function intervalOf(name) {
  const match = /^([\d.]+)–([\d.]+) s$/.exec(name);
  return match ? [Number(match[1]), Number(match[2])] : null;
}

function spectrumImage({ columns, rows, levels }) {
  const colours = ramp("sound");
  const image = new ImageData(columns, rows);
  for (let column = 0; column < columns; column++) {
    for (let row = 0; row < rows; row++) {
      const level = levels[column * rows + row];
      image.data.set(colours.subarray(4 * level, 4 * level + 4), 4 * ((rows - 1 - row) * columns + column));
    }
  }
  const canvas = new OffscreenCanvas(columns, rows);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
