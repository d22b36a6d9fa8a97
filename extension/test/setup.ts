// jsdom leaves out what every browser has.
import { TextEncoder } from 'node:util';

Object.assign(globalThis, { TextEncoder, DragEvent: class extends MouseEvent {} });
