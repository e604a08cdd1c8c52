/* Sounds and pictures as numbers: WAV files, spectra, pictures of a size. */

/** Samples of any sound the browser can decode: mono, at `rate` samples a second. */
export async function decodeSound(bytes, rate) {
  const context = new OfflineAudioContext(1, 1, rate);
  let buffer;
  try {
    buffer = await context.decodeAudioData(bytes.slice(0));
  } catch {
    throw new Error("This browser cannot read the sound. A WAV file always works.");
  }
  const samples = new Float32Array(buffer.length);
  for (let channel = 0; channel < buffer.numberOfChannels; channel++) {
    const part = buffer.getChannelData(channel);
    for (let i = 0; i < part.length; i++) samples[i] += part[i] / buffer.numberOfChannels;
  }
  return samples;
}

/** A WAV file: 16 bits, mono. */
export function wav(samples, rate) {
  const bytes = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, letters) => [...letters].forEach((letter, i) => bytes.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  bytes.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  bytes.setUint32(16, 16, true);
  bytes.setUint16(20, 1, true); // PCM
  bytes.setUint16(22, 1, true); // channels
  bytes.setUint32(24, rate, true);
  bytes.setUint32(28, 2 * rate, true);
  bytes.setUint16(32, 2, true);
  bytes.setUint16(34, 16, true);
  text(36, "data");
  bytes.setUint32(40, 2 * samples.length, true);
  samples.forEach((x, i) => bytes.setInt16(44 + 2 * i, Math.round(32767 * Math.max(-1, Math.min(1, x))), true));
  return new Blob([bytes], { type: "audio/wav" });
}

export function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("The file cannot be read."));
    reader.readAsDataURL(blob);
  });
}

// Spectra ---------------------------------------------------------------------------------------

const WINDOW = 512;

/** Levels 0 … 255 of a spectrogram, column by column: { columns, rows, levels }. Row 0 is low. */
export function spectrogram(samples, rate, mostColumns = 700) {
  const rows = WINDOW / 2;
  const hop = Math.max(rate / 200, samples.length / mostColumns);
  const columns = Math.max(1, Math.floor(samples.length / hop));
  const decibels = new Float32Array(columns * rows);
  let most = -Infinity;
  for (let column = 0; column < columns; column++) {
    const start = Math.round(column * hop) - WINDOW / 2;
    const power = powerSpectrum(samples, start);
    for (let row = 0; row < rows; row++) {
      const level = 10 * Math.log10(power[row] + 1e-10);
      decibels[column * rows + row] = level;
      most = Math.max(most, level);
    }
  }
  const range = 65; // dB below the loudest that are shown
  const levels = Uint8Array.from(decibels, (level) => Math.max(0, Math.min(255, (255 * (level - most + range)) / range)));
  return { columns, rows, levels };
}

const HANN = Float32Array.from({ length: WINDOW }, (_, i) => 0.5 - 0.5 * Math.cos((2 * Math.PI * i) / WINDOW));

function powerSpectrum(samples, start) {
  const re = new Float32Array(WINDOW);
  const im = new Float32Array(WINDOW);
  for (let i = 0; i < WINDOW; i++) re[i] = (samples[start + i] ?? 0) * HANN[i];
  fft(re, im);
  return re.slice(0, WINDOW / 2).map((x, i) => x * x + im[i] * im[i]);
}

/** Cooley and Tukey's transform, in place; the length is a power of two. */
function fft(re, im) {
  const n = re.length;
  for (let i = 1, j = 0; i < n; i++) { // bit reversal
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) {
      [re[i], re[j]] = [re[j], re[i]];
      [im[i], im[j]] = [im[j], im[i]];
    }
  }
  for (let size = 2; size <= n; size *= 2) {
    const angle = (-2 * Math.PI) / size;
    for (let start = 0; start < n; start += size) {
      for (let k = 0; k < size / 2; k++) {
        const [c, s] = [Math.cos(angle * k), Math.sin(angle * k)];
        const [a, b] = [start + k, start + k + size / 2];
        const [x, y] = [re[b] * c - im[b] * s, re[b] * s + im[b] * c];
        [re[b], im[b]] = [re[a] - x, im[a] - y];
        [re[a], im[a]] = [re[a] + x, im[a] + y];
      }
    }
  }
}

// Pictures --------------------------------------------------------------------------------------

const LARGEST = 512; // pixels of a side that is sent

/** A file or address as an image. */
export function loadImage(address) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Error("This is no picture that the browser can read."));
    image.src = address;
  });
}

/** The middle of a picture, in the shape the model reads (height by width), not larger than needed. */
export function cropped(image, [height, width]) {
  const ratio = width / height;
  const [w, h] = [image.naturalWidth || image.width, image.naturalHeight || image.height];
  const part = { w: Math.min(w, h * ratio), h: Math.min(h, w / ratio) };
  const scale = Math.min(1, LARGEST / Math.max(part.w, part.h));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(part.w * scale));
  canvas.height = Math.max(1, Math.round(part.h * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "#ffffff"; // where it is transparent, as the server does it
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(image, (w - part.w) / 2, (h - part.h) / 2, part.w, part.h, 0, 0, canvas.width, canvas.height);
  return canvas;
}

/** A picture as it is kept in the browser: small. */
export function keptPicture(canvas) {
  const address = canvas.toDataURL("image/png");
  if (address.length < 60_000) return address;
  const small = document.createElement("canvas");
  const scale = Math.min(1, 256 / Math.max(canvas.width, canvas.height));
  small.width = Math.round(canvas.width * scale);
  small.height = Math.round(canvas.height * scale);
  small.getContext("2d").drawImage(canvas, 0, 0, small.width, small.height);
  return small.toDataURL("image/jpeg", 0.85);
}

/** Lets files be dropped on a node. */
export function acceptDrops(node, kind, act) {
  const isOver = (value) => node.classList.toggle("dropping", value);
  node.addEventListener("dragover", (event) => {
    event.preventDefault();
    isOver(true);
  });
  node.addEventListener("dragleave", () => isOver(false));
  node.addEventListener("drop", (event) => {
    event.preventDefault();
    isOver(false);
    const file = [...event.dataTransfer.files].find(({ type }) => type.startsWith(kind)) ?? event.dataTransfer.files[0];
    if (file) act(file);
  });
}
