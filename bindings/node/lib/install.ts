// SPDX-License-Identifier: MIT OR Apache-2.0
// For `node --import spawnfd/install` and `--require`.

import { install } from './child_process';

install();
