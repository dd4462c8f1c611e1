// SPDX-License-Identifier: MIT OR Apache-2.0
// Run by late.c before any line of Node's own. Parks where Node's preparations have ended and its main script, which is internal, goes
// on to what it was asked for: at its last look at a property of Module, or of what that holds.
(function (require, internalBinding, park, begin, end, tidy, forCode, ahead) {
  'use strict';
  const { Module } = require('internal/modules/cjs/loader');
  const { bind } = Function.prototype;
  const { defineProperty } = Object;
  const property = forCode ? 'builtinModules' : 'runMain';
  const whole = { __proto__: null, configurable: true, enumerable: true };

  // Reading all options once more takes long: the main script asks here for the code, and for what it can have of the others.
  const options = require('internal/options');
  const { getOptionValue } = options;
  let code;
  if (forCode) options.getOptionValue = (name) => name === '--eval' ? code : getOptionValue(name);

  // What has been made of the command line so far, made once more of the one that there is now.
  const amend = () => {
    internalBinding('process_methods').patchProcessObject(process);
    process.argv[0] = process.execPath;
    if (forCode) {
      const value = code = process.execArgv.at(-1);
      if (value) defineProperty(process, '_eval', { ...whole, writable: false, value });
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

  // What console.log does with a standard output that is a pipe, and then with another stream: the first would be kept. So would be
  // process.stderr, which is looked at for its colours.
  const write = () => {
    const net = require('net');
    const stderr = Object.getOwnPropertyDescriptor(process, 'stderr');
    defineProperty(process, 'stderr', { ...whole, value: {} });
    const { Socket } = net;
    const { Console } = require('internal/console/constructor');
    const settle = () => process._tickCallback();
    net.Socket = undefined;
    try {
      require('internal/console/global').log();
    } catch {
      // It comes so far.
    }
    net.Socket = Socket;
    const stdout = new Socket({ fd: 1, readable: false, writable: true });
    const console = new Console({ stdout, stderr: stdout });
    for (let i = 0; i < 4; i++) {
      console.log(i);
      console.log('%s', '', { a: [1, 'b'] });
      console.error('text');
      settle();
    }
    stdout.destroy();
    settle();
    end();
    settle();
    defineProperty(process, 'stderr', stderr);
  };

  // They are looked at once more when they are first needed, as if what does it were loaded then.
  const forgetColours = () => {
    const colours = require('internal/util/colors');
    const { shouldColorize } = colours;
    colours.shouldColorize = (stream) => {
      colours.shouldColorize = shouldColorize;
      colours.refresh();
      return shouldColorize(stream);
    };
  };

  // Does what nearly all programs do, and leaves nothing but what it has compiled: writes by console; runs code.
  const rehearse = () => {
    const { async_id_fields: numbers, constants: { kAsyncIdCounter } } = internalBinding('async_wrap');
    const counted = numbers[kAsyncIdCounter];
    const globals = Reflect.ownKeys(globalThis);
    begin();
    write();
    if (forCode) {
      const { evalScript, evalTypeScript } = require('internal/process/execution');
      const modules = {};
      // What it defines loads them at the first look, and `module` is looked at.
      require('internal/modules/helpers').addBuiltinLibsToObject(modules, '<eval>');
      Reflect.get(modules, 'module');
      for (const run of [evalScript, evalTypeScript]) run?.('[eval]', '0', false, false, false);
      // As the main script asks: what matches is kept.
      /\bcrypto\b/.exec('0');
      process._tickCallback();
      // Else it would be remembered.
      process.chdir('.');
    } else {
      require('internal/modules/run_main');
      require('fs');
    }
    amend();
    for (const key of Reflect.ownKeys(globalThis)) if (!globals.includes(key)) delete globalThis[key];
    numbers[kAsyncIdCounter] = counted;
  };

  const prepare = () => {
    for (const name of ahead.split(',')) if (name) load(name.replace(/^node:/, ''));
    for (let i = 0; i < 2; i++) rehearse();
    tidy();
    rehearse();
    forgetColours();
  };

  // Names, and one more, at which nothing is done but what is done here.
  const followed = (names) => defineProperty([...names, ''], names.length, {
    get() {
      park();
      amend();
      return '_';
    },
  });

  const watch = (value) => defineProperty(Module, property, {
    ...whole,
    set: watch,
    get() {
      defineProperty(Module, property, { ...whole, writable: true, value });
      options.getOptionValue = getOptionValue;
      prepare();
      if (forCode) return followed(value);
      park();
      // Such a function leaves no frame in a stack trace.
      return Reflect.apply(bind, value, [Module, amend()]);
    },
  });

  if (Object.hasOwn(Module, property)) {
    watch(Module[property]);
  } else {
    // It is to come where it always does among its neighbours.
    defineProperty(Function.prototype, property, {
      ...whole,
      set(value) {
        delete Function.prototype[property];
        watch(value);
      },
    });
  }
  return process[internalBinding('util').privateSymbols.exit_info_private_symbol];
})
