/** Stands in for plotly.js, which needs a browser. */
export default {};
