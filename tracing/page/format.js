// Numbers and times.

function duration(micros) {
  const sign = micros < 0 ? "\u2212" : "";
  const time = Math.abs(micros);
  if (time === 0) return "0 s";
  if (time < 1000) return `${sign}${Math.round(time)} \u00b5s`;
  if (time < 999_500) return `${sign}${short(time / 1e3)} ms`;
  if (time < 59_950_000) return `${sign}${short(time / 1e6)} s`;
  const seconds = Math.round(time / 1e6);
  if (seconds < 3600) return `${sign}${Math.floor(seconds / 60)} m ${seconds % 60} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 1440) return `${sign}${Math.floor(minutes / 60)} h ${minutes % 60} m`;
  return `${sign}${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

const short = (number) => (number < 9.995 ? number.toFixed(2) : number < 99.95 ? number.toFixed(1) : number.toFixed(0));

// Tokens in short form: 950, 12.3k, 4.56M.
function tokens(number) {
  if (number < 1000) return String(number);
  if (number < 999_500) return `${short(number / 1e3)}k`;
  return `${short(number / 1e6)}M`;
}

function money(amount) {
  if (amount === null) return "\u2013";
  if (amount === 0) return "0";
  if (amount >= 100) return amount.toLocaleString("en", { maximumFractionDigits: 2 });
  return amount.toPrecision(3).includes("e") ? amount.toExponential(1) : String(Number(amount.toPrecision(3)));
}

const dayTime = (micros) => new Date((raw.time + micros / 1e6) * 1000);
const date = (micros) => dayTime(micros).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });

const errorLine = ([type = "an error", , message]) => (message ? `${type}: ${message}` : type);
