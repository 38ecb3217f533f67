// Ways around: the palette and single keys.
"use strict";
