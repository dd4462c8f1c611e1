// SPDX-License-Identifier: MIT OR Apache-2.0

// A bounded run, a job with streamed lines, a session, and a warm start, by the C library and cgo.
//
//	CGO_CFLAGS=$(pkg-config --cflags spawnfd) CGO_LDFLAGS=$(pkg-config --libs spawnfd) go run main.go
package main

// #cgo LDFLAGS: -lspawnfd
// #include <errno.h>
// #include <spawnfd.h>
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"
)

// newError returns memory for the error of one call.
func newError() *C.struct_spawnfd_error {
	return &C.struct_spawnfd_error{size: C.sizeof_struct_spawnfd_error}
}

func failure(cause *C.struct_spawnfd_error) error {
	return fmt.Errorf("%s: %w", C.GoString(&cause.message[0]), syscall.Errno(cause.error))
}

// command creates a command with options, or only options if there are no words.
func command(words []string, options ...string) (*C.struct_spawnfd_command, error) {
	var argv **C.char
	if len(words) > 0 {
		list := make([]*C.char, len(words)+1)
		for i, word := range words {
			list[i] = C.CString(word)
			defer C.free(unsafe.Pointer(list[i]))
		}
		memory := C.malloc(C.size_t(len(list)) * C.size_t(unsafe.Sizeof(list[0])))
		defer C.free(memory)
		copy(unsafe.Slice((**C.char)(memory), len(list)), list)
		argv = (**C.char)(memory)
	}
	cause := newError()
	created := C.spawnfd_command_new(argv, cause)
	if created == nil {
		return nil, failure(cause)
	}
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		cName, cValue := C.CString(name), C.CString(value)
		defer C.free(unsafe.Pointer(cName))
		defer C.free(unsafe.Pointer(cValue))
		if C.spawnfd_command_set(created, cName, cValue, cause) != 0 {
			C.spawnfd_command_free(created)
			return nil, failure(cause)
		}
	}
	return created, nil
}

// text returns a text of a result; empty if the result has no such text.
func text(result *C.struct_spawnfd_result, name string) string {
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))
	var length C.size_t
	found := C.spawnfd_result_text(result, cName, &length, nil)
	return C.GoStringN(found, C.int(length))
}

func number(result *C.struct_spawnfd_result, name string) float64 {
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))
	var value C.double
	C.spawnfd_result_number(result, cName, &value, nil)
	return float64(value)
}

// boundedRun runs a program with a timeout and bounded output.
func boundedRun() error {
	words := []string{"sh", "-c", "seq 100000; sleep 60"}
	seq, err := command(words, "timeout=2s", "keep=4:7", "marker=[{omitted} omitted]")
	if err != nil {
		return err
	}
	defer C.spawnfd_command_free(seq)
	cause := newError()
	result := C.spawnfd_run(seq, cause)
	if result == nil {
		return failure(cause)
	}
	defer C.spawnfd_result_free(result)
	fmt.Print(text(result, "stdout"))
	fmt.Printf("stop: %s, ok: %d, omitted: %.0f bytes\n", text(result, "stop"), C.spawnfd_result_ok(result),
		number(result, "omitted_bytes"))
	fmt.Printf("reason: %s\n", C.GoString(C.spawnfd_result_reason(result)))
	return nil
}

// streamedJob prints the lines of a job while it runs, and writes to it.
func streamedJob() error {
	words := []string{"sh", "-c", "echo ready; read word; echo got $word >&2; exit 3"}
	shell, err := command(words, "stdin=stream")
	if err != nil {
		return err
	}
	defer C.spawnfd_command_free(shell)
	cause := newError()
	job := C.spawnfd_start(shell, cause)
	if job == nil {
		return failure(cause)
	}
	defer C.spawnfd_job_free(job)
	input := C.CString("hello\n")
	defer C.free(unsafe.Pointer(input))
	if C.spawnfd_job_write(job, unsafe.Pointer(input), 6, -1, cause) != 6 {
		return failure(cause)
	}
	line := C.struct_spawnfd_line{size: C.sizeof_struct_spawnfd_line}
	for {
		// The call blocks a thread of the operating system, and no other goroutine.
		more := C.spawnfd_job_next_line(job, &line, 1000, cause)
		if more == 0 {
			break
		}
		if more < 0 && errors.Is(failure(cause), syscall.ETIMEDOUT) {
			continue
		}
		if more < 0 {
			return failure(cause)
		}
		stream := []string{1: "stdout", 2: "stderr"}[line.stream]
		fmt.Printf("%s: %s", stream, C.GoStringN(line.text, C.int(line.length)))
	}
	result := C.spawnfd_job_wait(job, -1, cause)
	if result == nil {
		return failure(cause)
	}
	defer C.spawnfd_result_free(result)
	fmt.Printf("code: %.0f\n", number(result, "code"))
	return nil
}

// session runs three commands in one shell.
func session() error {
	bash, err := command([]string{"bash"})
	if err != nil {
		return err
	}
	defer C.spawnfd_command_free(bash)
	options, err := command(nil, "timeout=1s")
	if err != nil {
		return err
	}
	defer C.spawnfd_command_free(options)
	cause := newError()
	session := C.spawnfd_session_open(bash, cause)
	if session == nil {
		return failure(cause)
	}
	defer C.spawnfd_session_free(session)
	for _, code := range []string{"cd /usr; greeting=hello", "echo $greeting from $PWD", "sleep 60"} {
		cCode := C.CString(code)
		result := C.spawnfd_session_run(session, cCode, options, cause)
		C.free(unsafe.Pointer(cCode))
		if result == nil {
			return failure(cause)
		}
		fmt.Printf("%s: %s\n%s", text(result, "stop"), text(result, "cwd"), text(result, "stdout"))
		C.spawnfd_result_free(result)
	}
	return nil
}

// warmStart starts a Python that has been started ahead.
func warmStart() error {
	python, err := command([]string{"python3", "-c", "print(6 * 7)"})
	if err != nil {
		return err
	}
	defer C.spawnfd_command_free(python)
	cause := newError()
	warm := C.spawnfd_warm_new(0, 0, cause)
	if warm == nil {
		return failure(cause)
	}
	defer C.spawnfd_warm_free(warm)
	program := C.CString("python3")
	defer C.free(unsafe.Pointer(program))
	if C.spawnfd_warm_add(warm, program, 1, cause) != 0 || C.spawnfd_warm_fill(warm, 10000, cause) < 0 ||
		C.spawnfd_command_set_warm(python, warm, cause) != 0 {
		return failure(cause)
	}
	result := C.spawnfd_run(python, cause)
	if result == nil {
		return failure(cause)
	}
	defer C.spawnfd_result_free(result)
	fmt.Print(text(result, "stdout"))
	fmt.Fprintf(os.Stderr, "started: %s\n", text(result, "started"))
	return nil
}

func main() {
	for _, example := range []func() error{boundedRun, streamedJob, session, warmStart} {
		if err := example(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
