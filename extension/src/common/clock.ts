/** Conversion of times to the browser's time zone, shared by panel, widgets and report; see the re-exported file. */
export {
  chooseUtc,
  isUtcChosen,
  utcOffsetMs,
  formatLocalTime,
  formatTimeRange,
  formatTimeOfDay,
  inLocalTime,
  localTimeFigure,
  localTimeLayout,
  localTimes,
  parseUtcMs,
  localTimeText,
  zoneName
} from '../../gipfel_extension/telemetry/figures/clock.js';
