// SPDX-License-Identifier: MIT OR Apache-2.0
// late.c runs this script before Node's own JavaScript. It makes Node park at the end of its bootstrap, just before
// the internal main script runs the program. There the main script reads a property of Module, `builtinModules` for
// code or `runMain` for a script. An accessor on that property parks the process.
(function (require, internalBinding, park, redirectOutput, restoreOutput, unmapFiles, forCode, preload) {
  'use strict';
  const { Module } = require('internal/modules/cjs/loader');
  const { bind } = Function.prototype;
  const { defineProperty } = Object;
  const property = forCode ? 'builtinModules' : 'runMain';
  const visible = { __proto__: null, configurable: true, enumerable: true };

  // The main script reads options by getOptionValue(). This replacement returns the code of the request. Otherwise
  // Node would have to read all options again, which takes 0.3 ms.
  const options = require('internal/options');
  const { getOptionValue } = options;
  let code;
  if (forCode) options.getOptionValue = (name) => name === '--eval' ? code : getOptionValue(name);

  // Sets the parts of `process` that come from the command line again, from the current command line.
  const updateProcess = () => {
    internalBinding('process_methods').patchProcessObject(process);
    process.argv[0] = process.execPath;
    if (forCode) {
      const value = code = process.execArgv.at(-1);
      if (value) defineProperty(process, '_eval', { ...visible, writable: false, value });
      else delete process._eval;
    } else {
      try {
        return process.argv[1] = require('path').resolve(process.argv[1]);
      } catch {
        // If the working directory does not exist, Node also leaves the path unresolved.
      }
    }
  };

  const load = (name) => {
    const { BuiltinModule } = require('internal/bootstrap/realm');
    if (!BuiltinModule.canBeRequiredByUsers(name)) throw new Error(`${name} is no module of Node's`);
    require(name);
  };

  // Runs the functions that console.log uses for a standard output that is a pipe. The function
  // makes the global console fail before it creates its stream, because Node would keep that stream. Then another
  // Console writes to a temporary stream. Meanwhile an empty object replaces process.stderr. Otherwise the check for
  // colors would create the real stream, and Node would keep it.
  const exerciseConsole = () => {
    const net = require('net');
    const stderr = Object.getOwnPropertyDescriptor(process, 'stderr');
    defineProperty(process, 'stderr', { ...visible, value: {} });
    const { Socket } = net;
    const { Console } = require('internal/console/constructor');
    const runTicks = () => process._tickCallback();
    net.Socket = undefined;
    try {
      require('internal/console/global').log();
    } catch {
      // net.Socket is undefined, so log() throws there. V8 has by then compiled the functions that log() called before.
    }
    net.Socket = Socket;
    const stdout = new Socket({ fd: 1, readable: false, writable: true });
    const console = new Console({ stdout, stderr: stdout });
    for (let i = 0; i < 4; i++) {
      console.log(i);
      console.log('%s', '', { a: [1, 'b'] });
      console.error('text');
      runTicks();
    }
    stdout.destroy();
    runTicks();
    restoreOutput();
    runTicks();
    defineProperty(process, 'stderr', stderr);
  };

  // Makes Node check the support for colors again at the first use, as if the module were loaded then.
  const resetColors = () => {
    const colors = require('internal/util/colors');
    const { shouldColorize } = colors;
    colors.shouldColorize = (stream) => {
      colors.shouldColorize = shouldColorize;
      colors.refresh();
      return shouldColorize(stream);
    };
  };

  // Runs functions that nearly all programs use, so that V8 compiles them: console output and evaluation of code.
  // Undoes all other effects.
  const warmUp = () => {
    const { async_id_fields: asyncIds, constants: { kAsyncIdCounter } } = internalBinding('async_wrap');
    const lastAsyncId = asyncIds[kAsyncIdCounter];
    const globals = Reflect.ownKeys(globalThis);
    redirectOutput();
    exerciseConsole();
    if (forCode) {
      const { evalScript, evalTypeScript } = require('internal/process/execution');
      const modules = {};
      // This call defines accessors that load a module at the first access. Access `module`, as the
      // main script does.
      require('internal/modules/helpers').addBuiltinLibsToObject(modules, '<eval>');
      Reflect.get(modules, 'module');
      for (const run of [evalScript, evalTypeScript]) run?.('[eval]', '0', false, false, false);
      // The main script tests the code by this expression. The string '0' does not match, because
      // RegExp.lastMatch would keep a match.
      /\bcrypto\b/.exec('0');
      process._tickCallback();
      // This call clears the cached working directory.
      process.chdir('.');
    } else {
      require('internal/modules/run_main');
      require('fs');
    }
    updateProcess();
    for (const key of Reflect.ownKeys(globalThis)) if (!globals.includes(key)) delete globalThis[key];
    asyncIds[kAsyncIdCounter] = lastAsyncId;
  };

  const prepare = () => {
    for (const name of preload.split(',')) if (name) load(name.replace(/^node:/, ''));
    for (let i = 0; i < 2; i++) warmUp();
    unmapFiles();
    warmUp();
    resetColors();
  };

  // Returns a copy of the list of module names with one more element. The main script goes through the list, and
  // parks when it reads that element. It ignores the name `_`.
  const withParkingElement = (names) => defineProperty([...names, ''], names.length, {
    get() {
      park();
      updateProcess();
      return '_';
    },
  });

  const interceptRead = (value) => defineProperty(Module, property, {
    ...visible,
    set: interceptRead,
    get() {
      defineProperty(Module, property, { ...visible, writable: true, value });
      options.getOptionValue = getOptionValue;
      prepare();
      if (forCode) return withParkingElement(value);
      park();
      // Call through `bind`, because a bound function leaves no frame of this script in a stack
      // trace.
      return Reflect.apply(bind, value, [Module, updateProcess()]);
    },
  });

  if (Object.hasOwn(Module, property)) {
    interceptRead(Module[property]);
  } else {
    // Node defines the property later. A setter on the prototype lets Node create it at its usual position among the
    // properties of Module.
    defineProperty(Function.prototype, property, {
      ...visible,
      set(value) {
        delete Function.prototype[property];
        interceptRead(value);
      },
    });
  }
  return process[internalBinding('util').privateSymbols.exit_info_private_symbol];
})
