/** Stands in for an SVG file. */
export default '<svg></svg>';
