/** Return the message of an error, one line for people. */
export function lineOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
