declare module 'plotly.js-cartesian-dist-min' {
  const Plotly: import('../views/figures/plotly').IPlotly;
  export default Plotly;
}

declare module 'plotly.js-dist-min' {
  const Plotly: import('../views/figures/plotly').IPlotly;
  export default Plotly;
}
