// SPDX-License-Identifier: MIT OR Apache-2.0
// Run by late.c before any line of Node's own. Parks where Node's preparations have ended and its main script, which is internal, goes
// on to what it was asked for: at its first look at a property of Module.
(function (require, internalBinding, park, turn, pipe, forCode, ahead) {
  'use strict';
  const { Module } = require('internal/modules/cjs/loader');
  const { bind } = Function.prototype;
  const property = forCode ? 'builtinModules' : 'runMain';
  const whole = { __proto__: null, configurable: true, enumerable: true };

  // What has been made of the command line so far, made once more of the one that there is now.
  const amend = () => {
    const options = require('internal/options');
    internalBinding('process_methods').patchProcessObject(process);
    process.argv[0] = process.execPath;
    if (forCode) {
      options.refreshOptions();
      const value = options.getOptionValue('--eval');
      if (value) Object.defineProperty(process, '_eval', { ...whole, writable: false, value });
      else delete process._eval;
    } else {
      try {
        return process.argv[1] = require('path').resolve(process.argv[1]);
      } catch {
        // As Node has it, where there is no working directory.
      }
    }
  };

  const load = (name) => {
    const { BuiltinModule } = require('internal/bootstrap/realm');
    if (!BuiltinModule.canBeRequiredByUsers(name)) throw new Error(`${name} is no module of Node's`);
    require(name);
  };

  // Does what nearly all programs do, and leaves nothing but what it has compiled: writes to a pipe by console; runs code.
  const rehearse = () => {
    const { async_id_fields: numbers, constants: { kAsyncIdCounter } } = internalBinding('async_wrap');
    const counted = numbers[kAsyncIdCounter];
    const globals = Reflect.ownKeys(globalThis);
    const { Socket } = require('net');
    const { Console } = require('internal/console/constructor');
    const settle = () => process._tickCallback();
    const stdout = new Socket({ fd: pipe, readable: false, writable: true });
    const console = new Console({ stdout, stderr: stdout });
    for (let i = 0; i < 4; i++) {
      console.log(i);
      console.log('%s', '', { a: [1, 'b'] });
      console.error('text');
      settle();
    }
    stdout.destroy();
    settle();
    turn();
    settle();
    if (forCode) {
      const { evalScript, evalTypeScript } = require('internal/process/execution');
      const modules = {};
      // What it defines loads them at the first look, and `module` is looked at.
      require('internal/modules/helpers').addBuiltinLibsToObject(modules, '<eval>');
      Reflect.get(modules, 'module');
      for (const run of [evalScript, evalTypeScript]) run?.('[eval]', '0', false, false, false);
      settle();
      // Else it would be remembered.
      process.chdir('.');
    } else {
      require('internal/modules/run_main');
      require('fs');
    }
    for (const name of ahead.split(',')) if (name) load(name.replace(/^node:/, ''));
    for (const key of Reflect.ownKeys(globalThis)) if (!globals.includes(key)) delete globalThis[key];
    numbers[kAsyncIdCounter] = counted;
  };

  const watch = (value) => Object.defineProperty(Module, property, {
    ...whole,
    set: watch,
    get() {
      Object.defineProperty(Module, property, { ...whole, writable: true, value });
      rehearse();
      park();
      const entry = amend();
      // Such a function leaves no frame in a stack trace.
      return forCode ? value : Reflect.apply(bind, value, [Module, entry]);
    },
  });

  if (Object.hasOwn(Module, property)) {
    watch(Module[property]);
  } else {
    // It is to come where it always does among its neighbours.
    Object.defineProperty(Function.prototype, property, {
      ...whole,
      set(value) {
        delete Function.prototype[property];
        watch(value);
      },
    });
  }
  return process[internalBinding('util').privateSymbols.exit_info_private_symbol];
})
