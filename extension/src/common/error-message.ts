/** Return the message of an error as one line. */
export function errorMessage(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
