declare module 'plotly.js-cartesian-dist-min' {
  const Plotly: import('./plotly').IPlotly;
  export default Plotly;
}

declare module 'plotly.js-dist-min' {
  const Plotly: import('./plotly').IPlotly;
  export default Plotly;
}
