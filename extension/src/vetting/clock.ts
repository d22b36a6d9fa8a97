/** A time of the clock here; with the day where it was another one. */
export function clock(ns: number): string {
  const time = new Date(ns / 1e6);
  const today = time.toDateString() === new Date().toDateString();
  const minutes = time.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
  return today ? minutes : `${time.toLocaleDateString()} ${minutes}`;
}
