import js from '@eslint/js';
import hooks from 'eslint-plugin-react-hooks';
import tseslint from 'typescript-eslint';

export default tseslint.config(
  {
    ignores: [
      'lib',
      'node_modules',
      'gipfel_extension',
      '.yarn',
      'style/index.js',
      '*.config.js',
      'eslint.config.mjs',
      'build-views.mjs'
    ]
  },
  js.configs.recommended,
  ...tseslint.configs.strictTypeChecked,
  ...tseslint.configs.stylisticTypeChecked,
  hooks.configs.flat.recommended,
  {
    languageOptions: {
      parserOptions: {
        project: ['tsconfig.json', 'tsconfig.test.json'],
        tsconfigRootDir: import.meta.dirname
      }
    },
    rules: {
      curly: ['error', 'all'],
      eqeqeq: 'error',
      'no-console': 'error',
      'max-lines': ['error', 300],
      'max-lines-per-function': ['error', { max: 50, skipBlankLines: true, skipComments: true }],
      '@typescript-eslint/naming-convention': [
        'error',
        // Jupyter's convention: what another package may implement starts with I.
        { selector: 'interface', format: ['PascalCase'], custom: { regex: '^I[A-Z]', match: true } }
      ],
      // Numbers in texts are what this panel is about.
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }]
    }
  },
  // A describe is a list of tests.
  { files: ['test/**'], rules: { 'max-lines-per-function': 'off' } }
);
