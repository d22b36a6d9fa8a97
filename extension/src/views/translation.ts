/** The part of JupyterLab's translation that views use; `%1`, `%2`, … are replaced by the values, `%%` by `%`. */
export interface ITranslation {
  __(text: string, ...values: (string | number)[]): string;
  /** The first text for a count of one, else the second; `%1` is the count. */
  _n(one: string, many: string, count: number, ...values: (string | number)[]): string;
}

/** Texts as they are written, for pages without JupyterLab. */
export const ENGLISH: ITranslation = {
  __: (text, ...values) =>
    text.replace(/%(%|\d+)/g, (found, place: string) =>
      place === '%' ? '%' : String(values[Number(place) - 1] ?? found)
    ),
  _n: (one, many, count, ...values) => ENGLISH.__(count === 1 ? one : many, count, ...values)
};
