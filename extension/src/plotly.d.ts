declare module 'plotly.js-dist-min' {
  const Plotly: import('./tokens').IPlotly;
  export default Plotly;
}
