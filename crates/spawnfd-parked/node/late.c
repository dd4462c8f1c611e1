/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Late parking: Node parks at the end of its bootstrap. This file runs the script late.js in Node,
 * with the same arguments that Node's internal modules get. It uses functions of V8 and Node that
 * the executable exports for add-ons.
 */
#define _GNU_SOURCE
#include "../node-threads/threads.h"
#include "node.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

/* The text of late.js. build.rs passes -I, by which the assembler finds the file. */
extern const char spawnfd_node_script[];
__asm__(".pushsection .rodata\n"
	".hidden spawnfd_node_script\n"
	".globl spawnfd_node_script\n"
	"spawnfd_node_script: .incbin \"late.js\"\n"
	".byte 0\n"
	".popsection\n");

/* v8::Local and v8::MaybeLocal: a pointer, which is NULL if empty. */
typedef void *local;

static struct {
	void *(*isolate)(void);
	local (*context)(void *isolate);
	local (*string)(void *isolate, const char *text, int type, int length);
	local (*compile)(local context, local source, void *origin);
	local (*run)(local script, local context);
	local (*call)(local function, local context, local receiver, int count, local *arguments);
	local (*function)(local context, void (*callback)(const void *), local data, int length,
			  int constructor, int side_effects);
	local (*require)(const void *realm);
	local (*binding)(const void *realm);
	const char *realm_table;
	void *(*environment)(local context);
	void (*at_exit)(void *environment, void (*callback)(void *), void *argument);
	local (*buffer)(local view);
	void *(*data)(local buffer);
	local (*script_name)(void *isolate);
	local (*stack)(void *isolate, int limit, int options);
	int (*frames)(local stack);
	/* v8::HandleScope, or NULL. Up to Node 24 the calls below create a handle even if they find
	 * nothing. */
	void (*open_handles)(void *scope, void *isolate);
	void (*close_handles)(void *scope);
	void (*reset_streams)(void);
} v8;

static struct {
	void *(*loop)(void);
	int (*run)(void *loop, int mode);
} uv;
enum { NO_WAIT = 2 };

static const struct {
	void *pointer;
	/* The symbol, and its name since Node 26 if that differs. */
	const char *name, *newer;
} symbols[] = {
	{&v8.isolate, "_ZN2v87Isolate10GetCurrentEv", NULL},
	{&v8.context, "_ZN2v87Isolate17GetCurrentContextEv", NULL},
	{&v8.string, "_ZN2v86String11NewFromUtf8EPNS_7IsolateEPKcNS_13NewStringTypeEi", NULL},
	{&v8.compile,
	 "_ZN2v86Script7CompileENS_5LocalINS_7ContextEEENS1_INS_6StringEEEPNS_"
	 "12ScriptOriginE",
	 NULL},
	{&v8.run, "_ZN2v86Script3RunENS_5LocalINS_7ContextEEE", NULL},
	{&v8.call, "_ZN2v88Function4CallENS_5LocalINS_7ContextEEENS1_INS_5ValueEEEiPS5_", NULL},
	{&v8.function,
	 "_ZN2v88Function3NewENS_5LocalINS_7ContextEEEPFvRKNS_20FunctionCallbackInfoINS_"
	 "5ValueEEEENS1_IS5_EEiNS_19ConstructorBehaviorENS_14SideEffectTypeE",
	 "_ZN2v88Function3NewENS_5LocalINS_7ContextEEEPFvRKNS_20FunctionCallbackInfoINS_"
	 "5ValueEEEENS1_INS_4DataEEEiNS_19ConstructorBehaviorENS_14SideEffectTypeE"},
	{&v8.require, "_ZNK4node14PrincipalRealm22builtin_module_requireEv", NULL},
	{&v8.binding, "_ZNK4node14PrincipalRealm23internal_binding_loaderEv", NULL},
	{&v8.realm_table, "_ZTVN4node14PrincipalRealmE", NULL},
	{&v8.environment, "_ZN4node21GetCurrentEnvironmentEN2v85LocalINS0_7ContextEEE", NULL},
	{&v8.at_exit, "_ZN4node6AtExitEPNS_11EnvironmentEPFvPvES2_", NULL},
	{&v8.buffer, "_ZN2v815ArrayBufferView6BufferEv", NULL},
	{&v8.data, "_ZNK2v811ArrayBuffer4DataEv", NULL},
	{&v8.script_name, "_ZN2v810StackTrace28CurrentScriptNameOrSourceURLEPNS_7IsolateE", NULL},
	{&v8.stack, "_ZN2v810StackTrace17CurrentStackTraceEPNS_7IsolateEiNS0_17StackTraceOptionsE",
	 NULL},
	{&v8.frames, "_ZNK2v810StackTrace13GetFrameCountEv", NULL},
	{&v8.reset_streams, "_ZN4node10ResetStdioEv", NULL},
	{&uv.loop, "uv_default_loop", NULL},
	{&uv.run, "uv_run", NULL},
};

static void (*park_process)(void);

static local run(void *isolate, local context, const char *source)
{
	local text = v8.string(isolate, source, 0, -1);
	local script = text ? v8.compile(context, text, NULL) : NULL;

	return script ? v8.run(script, context) : NULL;
}

/* --- early exit ---------------------------------------------------------------------------------
 * After its last exit hook, Node only frees memory. That is half of a short program's time, and a
 * fork copies each page that it frees. So the process exits in that hook, unless add-ons or threads
 * of the program may still have work to do.
 */

static struct {
	/* Node's exit_info: kExiting, kExitCode, kHasExitCode (src/env.h). */
	const int32_t *fields;
	/* Number of shared objects that were loaded until parking. */
	unsigned long long objects;
} exit_state;

static int count_loaded_objects(struct dl_phdr_info *info, size_t size, void *count)
{
	(void)size;
	*(unsigned long long *)count = info->dlpi_adds;
	return 1;
}

static bool is_script_running(void)
{
	_Alignas(16) char scope[64];
	void *isolate = v8.isolate();
	bool running;

	if (v8.open_handles)
		v8.open_handles(scope, isolate);
	running = v8.script_name(isolate) && v8.frames(v8.stack(isolate, 1, 0));
	if (v8.open_handles)
		v8.close_handles(scope);
	return running;
}

static void exit_early(void *unused)
{
	unsigned long long objects = 0;

	(void)unused;
	dl_iterate_phdr(count_loaded_objects, &objects);
	/* Return if there are new add-ons or threads. Also return if JavaScript has called
	 * process.reallyExit(), because that call has its own exit code. */
	if (objects != exit_state.objects || !spawnfd_threads_are_unchanged() ||
	    is_script_running())
		return;
	v8.reset_streams();
	fflush(NULL);
	_exit(exit_state.fields[2] ? exit_state.fields[1] : 0);
}

static bool add_exit_hook(local context, local fields)
{
	void *environment = v8.environment(context);
	local buffer = v8.buffer(fields);

	exit_state.fields = buffer ? v8.data(buffer) : NULL;
	dl_iterate_phdr(count_loaded_objects, &exit_state.objects);
	if (environment && exit_state.fields)
		v8.at_exit(environment, exit_early, NULL);
	return environment && exit_state.fields;
}

/* --- functions that late.js calls ---------------------------------------------------------------
 */

/* Temporary descriptors get numbers from 40 on. Node still gets the lowest numbers. */
enum { FIRST_TEMPORARY = 40 };
static int standard_output, unread_pipe;

static int move_to_temporary(int fd)
{
	int moved = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_TEMPORARY);

	close(fd);
	return moved;
}

/* Redirects standard output to a pipe that is never read. */
static void redirect_output(const void *info)
{
	int ends[2];

	(void)info;
	standard_output = fcntl(1, F_DUPFD_CLOEXEC, FIRST_TEMPORARY);
	if (standard_output < 0 || pipe2(ends, O_CLOEXEC) || dup3(ends[1], 1, O_CLOEXEC) < 0)
		spawnfd_cannot_park("descriptors");
	close(ends[1]);
	unread_pipe = move_to_temporary(ends[0]);
}

/* Runs the event loop once, so that it closes closing handles, and restores standard output. */
static void restore_output(const void *info)
{
	(void)info;
	uv.run(uv.loop(), NO_WAIT);
	dup3(standard_output, 1, O_CLOEXEC);
	close(standard_output);
	close(unread_pipe);
}

static void unmap_files(const void *info)
{
	(void)info;
	spawnfd_node_unmap_files();
}

static void call_park(const void *info)
{
	(void)info;
	park_process();
}

bool spawnfd_node_park_late(bool code, const char *preload, void (*park)(void))
{
	void *isolate, *realm;
	local context, function, fields, arguments[8];

	for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
		void *found = dlsym(RTLD_DEFAULT, symbols[i].name);

		if (!found && symbols[i].newer)
			found = dlsym(RTLD_DEFAULT, symbols[i].newer);
		if (!found)
			return false;
		*(void **)symbols[i].pointer = found;
	}
	v8.open_handles = (__typeof__(v8.open_handles))dlsym(RTLD_DEFAULT,
							     "_ZN2v811HandleScopeC1EPNS_7IsolateE");
	v8.close_handles =
		(__typeof__(v8.close_handles))dlsym(RTLD_DEFAULT, "_ZN2v811HandleScopeD1Ev");
	park_process = park;
	isolate = v8.isolate();
	context = isolate ? v8.context(isolate) : NULL;
	/* An object begins with a pointer into its vtable, behind the first two words (Itanium C++
	 * ABI). */
	realm = spawnfd_node_find_object(v8.realm_table + 2 * sizeof(void *));
	if (!context || !realm)
		return false;
	function = run(isolate, context, spawnfd_node_script);
	arguments[0] = v8.require(realm);
	arguments[1] = v8.binding(realm);
	arguments[2] = v8.function(context, call_park, NULL, 0, 0, 0);
	arguments[3] = v8.function(context, redirect_output, NULL, 0, 0, 0);
	arguments[4] = v8.function(context, restore_output, NULL, 0, 0, 0);
	arguments[5] = v8.function(context, unmap_files, NULL, 0, 0, 0);
	arguments[6] = run(isolate, context, code ? "true" : "false");
	arguments[7] = v8.string(isolate, preload, 0, -1);
	for (int i = 0; i < 8; i++)
		if (!arguments[i])
			return false;
	fields = function ? v8.call(function, context, function, 8, arguments) : NULL;
	return fields && add_exit_hook(context, fields);
}
