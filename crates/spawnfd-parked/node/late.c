/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Late parking: Node parks at the end of its bootstrap. This file runs the script late.js in Node,
 * with the same arguments that Node's internal modules get. It uses functions of V8 and Node that
 * the executable exports for add-ons.
 */
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

/* Represents v8::Local and v8::MaybeLocal, which consist of one pointer. The pointer is NULL if the
 * handle is empty. */
typedef void *local;

/* Functions of V8, Node and libuv, and a vtable of Node, with their symbol names. */
#define SYMBOLS(X)                                                                                 \
	X(void *, isolate, (void), "_ZN2v87Isolate10GetCurrentEv")                                 \
	X(local, context, (void *isolate), "_ZN2v87Isolate17GetCurrentContextEv")                  \
	X(local, string, (void *isolate, const char *text, int type, int length),                  \
	  "_ZN2v86String11NewFromUtf8EPNS_7IsolateEPKcNS_13NewStringTypeEi")                       \
	X(local, compile, (local context, local source, void *origin),                             \
	  "_ZN2v86Script7CompileENS_5LocalINS_7ContextEEENS1_INS_6StringEEEPNS_"                   \
	  "12ScriptOriginE")                                                                       \
	X(local, run, (local script, local context), "_ZN2v86Script3RunENS_5LocalINS_7ContextEEE") \
	X(local, call,                                                                             \
	  (local function, local context, local receiver, int count, local *arguments),            \
	  "_ZN2v88Function4CallENS_5LocalINS_7ContextEEENS1_INS_5ValueEEEiPS5_")                   \
	X(local, require, (const void *realm),                                                     \
	  "_ZNK4node14PrincipalRealm22builtin_module_requireEv")                                   \
	X(local, binding, (const void *realm),                                                     \
	  "_ZNK4node14PrincipalRealm23internal_binding_loaderEv")                                  \
	X(const char, realm_table, , "_ZTVN4node14PrincipalRealmE")                                \
	X(void *, environment, (local context),                                                    \
	  "_ZN4node21GetCurrentEnvironmentEN2v85LocalINS0_7ContextEEE")                            \
	X(void, at_exit, (void *environment, void (*callback)(void *), void *argument),            \
	  "_ZN4node6AtExitEPNS_11EnvironmentEPFvPvES2_")                                           \
	X(local, buffer, (local view), "_ZN2v815ArrayBufferView6BufferEv")                         \
	X(void *, data, (local buffer), "_ZNK2v811ArrayBuffer4DataEv")                             \
	X(void, before_each_call, (void *isolate, void (*callback)(void *isolate)),                \
	  "_ZN2v87Isolate28AddBeforeCallEnteredCallbackEPFvPS0_E")                                 \
	X(double, async_id, (void *isolate),                                                       \
	  "_ZN4node29AsyncHooksGetExecutionAsyncIdEPN2v87IsolateE")                                \
	X(local, script_name, (void *isolate),                                                     \
	  "_ZN2v810StackTrace28CurrentScriptNameOrSourceURLEPNS_7IsolateE")                        \
	X(local, stack, (void *isolate, int limit, int options),                                   \
	  "_ZN2v810StackTrace17CurrentStackTraceEPNS_7IsolateEiNS0_17StackTraceOptionsE")          \
	X(int, frames, (local stack), "_ZNK2v810StackTrace13GetFrameCountEv")                      \
	X(void, reset_streams, (void), "_ZN4node10ResetStdioEv")                                   \
	X(void *, uv_loop, (void), "uv_default_loop")                                              \
	X(int, uv_run, (void *loop, int mode), "uv_run")

#define DECLARE(result, name, arguments, symbol) result(*name) arguments;
static struct {
	SYMBOLS(DECLARE)
	/* v8::Function::New, which has another symbol name since Node 26. */
	local (*function)(local context, void (*callback)(const void *), local data, int length,
			  int constructor, int side_effects);
	/* Constructor and destructor of v8::HandleScope, or NULL. In Node 24 and older,
	 * is_script_running() creates a handle even if it finds nothing. */
	void (*open_handles)(void *scope, void *isolate);
	void (*close_handles)(void *scope);
} api;
#undef DECLARE
enum { NO_WAIT = 2 };

const char *spawnfd_node_find_symbols(void)
{
	bool found = true;

#define LOOK_UP(name, symbol) (api.name = (__typeof__(api.name))dlsym(RTLD_DEFAULT, symbol))
#define FIND(result, name, arguments, symbol) found = LOOK_UP(name, symbol) && found;
	SYMBOLS(FIND)
#undef FIND
	if (!LOOK_UP(function, "_ZN2v88Function3NewENS_5LocalINS_7ContextEEEPFvRKNS_"
			       "20FunctionCallbackInfoINS_5ValueEEEENS1_IS5_EEiNS_"
			       "19ConstructorBehaviorENS_14SideEffectTypeE"))
		LOOK_UP(function, "_ZN2v88Function3NewENS_5LocalINS_7ContextEEEPFvRKNS_"
				  "20FunctionCallbackInfoINS_5ValueEEEENS1_INS_4DataEEEiNS_"
				  "19ConstructorBehaviorENS_14SideEffectTypeE");
	LOOK_UP(open_handles, "_ZN2v811HandleScopeC1EPNS_7IsolateE");
	LOOK_UP(close_handles, "_ZN2v811HandleScopeD1Ev");
	if (found && api.function)
		return NULL;
	return "no access to Node's JavaScript";
}

/* Node's realm, or NULL. The object begins with a pointer into its vtable. The pointer skips the
 * first two words of the vtable (Itanium C++ ABI). */
static void *find_realm(void)
{
	return spawnfd_node_find_object(api.realm_table + 2 * sizeof(void *));
}

/* --- Node without a snapshot --------------------------------------------------------------------
 */

/* The function to call before the main script, and NULL afterwards. */
static void (*before_main_script)(void);

/* The id that Node gives to the execution of the main script. While Node loads its internal
 * modules, the id is 0. */
enum { MAIN_SCRIPT = 1 };

/* V8 calls this function each time before C++ code calls JavaScript. The function stays registered,
 * because V8 goes through the list of such functions meanwhile. */
static void on_call(void *isolate)
{
	void (*callback)(void) = before_main_script;

	if (!callback || api.async_id(isolate) != MAIN_SCRIPT)
		return;
	before_main_script = NULL;
	callback();
}

bool spawnfd_node_call_before_main_script(void (*callback)(void))
{
	static bool called;
	void *realm;

	if (called)
		return false;
	called = true;
	realm = find_realm();
	if (!realm || api.require(realm))
		return false;
	before_main_script = callback;
	api.before_each_call(api.isolate(), on_call);
	return true;
}

/* --- running late.js ----------------------------------------------------------------------------
 */

static void (*park_process)(void);

static local run(void *isolate, local context, const char *source)
{
	local text = api.string(isolate, source, 0, -1);
	local script = text ? api.compile(context, text, NULL) : NULL;

	return script ? api.run(script, context) : NULL;
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
	*(unsigned long long *)count = info->dlpi_adds;
	return 1;
}

static bool is_script_running(void)
{
	_Alignas(16) char scope[64];
	void *isolate = api.isolate();
	bool running;

	if (api.open_handles)
		api.open_handles(scope, isolate);
	running = api.script_name(isolate) && api.frames(api.stack(isolate, 1, 0));
	if (api.open_handles)
		api.close_handles(scope);
	return running;
}

static void exit_early(void *unused)
{
	unsigned long long objects = 0;

	dl_iterate_phdr(count_loaded_objects, &objects);
	/* Return if there are new add-ons or threads. Also return if JavaScript has called
	 * process.reallyExit(), because that call has its own exit code. */
	if (objects != exit_state.objects || !spawnfd_threads_are_unchanged() ||
	    is_script_running())
		return;
	api.reset_streams();
	fflush(NULL);
	_exit(exit_state.fields[2] ? exit_state.fields[1] : 0);
}

static bool add_exit_hook(local context, local fields)
{
	void *environment = api.environment(context);
	local buffer = api.buffer(fields);

	exit_state.fields = buffer ? api.data(buffer) : NULL;
	dl_iterate_phdr(count_loaded_objects, &exit_state.objects);
	if (environment && exit_state.fields)
		api.at_exit(environment, exit_early, NULL);
	return environment && exit_state.fields;
}

/* --- functions that late.js calls ---------------------------------------------------------------
 */

/* Temporary descriptors get numbers from 40 on, so the lowest numbers stay free for Node. */
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

	standard_output = fcntl(1, F_DUPFD_CLOEXEC, FIRST_TEMPORARY);
	if (standard_output < 0 || pipe2(ends, O_CLOEXEC) || dup3(ends[1], 1, O_CLOEXEC) < 0)
		spawnfd_cannot_park("descriptors");
	close(ends[1]);
	unread_pipe = move_to_temporary(ends[0]);
}

/* Runs the event loop once, so that it closes closing handles, and restores standard output. */
static void restore_output(const void *info)
{
	api.uv_run(api.uv_loop(), NO_WAIT);
	dup3(standard_output, 1, O_CLOEXEC);
	close(standard_output);
	close(unread_pipe);
}

static void unmap_files(const void *info)
{
	spawnfd_node_unmap_files();
}

static void call_park(const void *info)
{
	park_process();
}

bool spawnfd_node_park_late(bool code, const char *preload, void (*park)(void))
{
	void *isolate, *realm;
	local context, function, fields, arguments[8];

	park_process = park;
	isolate = api.isolate();
	context = isolate ? api.context(isolate) : NULL;
	realm = find_realm();
	if (!context || !realm)
		return false;
	function = run(isolate, context, spawnfd_node_script);
	arguments[0] = api.require(realm);
	arguments[1] = api.binding(realm);
	arguments[2] = api.function(context, call_park, NULL, 0, 0, 0);
	arguments[3] = api.function(context, redirect_output, NULL, 0, 0, 0);
	arguments[4] = api.function(context, restore_output, NULL, 0, 0, 0);
	arguments[5] = api.function(context, unmap_files, NULL, 0, 0, 0);
	arguments[6] = run(isolate, context, code ? "true" : "false");
	arguments[7] = api.string(isolate, preload, 0, -1);
	for (int i = 0; i < 8; i++)
		if (!arguments[i])
			return false;
	fields = function ? api.call(function, context, function, 8, arguments) : NULL;
	return fields && add_exit_hook(context, fields);
}
