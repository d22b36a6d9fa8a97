/** Tests of models and plugins in Node.js; `test/jupyterlab.ts` stands in for JupyterLab's own packages. */
module.exports = {
  rootDir: '.',
  testMatch: ['<rootDir>/test/**/*.spec.ts?(x)'],
  modulePathIgnorePatterns: ['<rootDir>/gipfel_extension/labextension', '<rootDir>/lib'],
  testEnvironment: 'jsdom',
  setupFiles: ['<rootDir>/test/setup.ts'],
  transform: { '\\.[jt]sx?$': ['ts-jest', { tsconfig: '<rootDir>/tsconfig.test.json' }] },
  moduleNameMapper: {
    '^@jupyterlab/.*$': '<rootDir>/test/jupyterlab.ts',
    '^plotly\\.js-.*$': '<rootDir>/test/plotly.ts',
    '\\.svg$': '<rootDir>/test/icon.ts'
  }
};
