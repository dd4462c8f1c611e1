# SPDX-License-Identifier: MIT OR Apache-2.0
# frozen_string_literal: true

# A bounded run, a job with streamed lines, a session, and a warm start, by the C library and Fiddle. Fiddle is part of
# Ruby, so no gem is needed.
#
#   ruby run.rb [LIBRARY]
require "fiddle/import"
require "io/wait"

# The functions of the C library.
module Native
  extend Fiddle::Importer
  dlload ARGV.fetch(0, "libspawnfd.so.0")

  Error = struct ["unsigned int size", "int error", "int action", "char stage[20]", "char message[480]"]
  Line = struct ["unsigned int size", "unsigned int stream", "unsigned long long position", "unsigned long long lost",
                 "size_t length", "char *text"]

  extern "void *spawnfd_command_new(void *argv, void *error)"
  extern "void spawnfd_command_free(void *command)"
  extern "int spawnfd_command_set(void *command, char *name, char *value, void *error)"
  extern "int spawnfd_command_set_warm(void *command, void *warm, void *error)"
  extern "void *spawnfd_run(void *command, void *error)"
  extern "void *spawnfd_start(void *command, void *error)"
  extern "int spawnfd_job_fd(void *job)"
  extern "int spawnfd_job_next_line(void *job, void *line, int timeout_ms, void *error)"
  extern "ssize_t spawnfd_job_write(void *job, char *data, size_t length, int timeout_ms, void *error)"
  extern "void *spawnfd_job_wait(void *job, int timeout_ms, void *error)"
  extern "void spawnfd_job_free(void *job)"
  extern "int spawnfd_result_ok(void *result)"
  extern "int spawnfd_result_number(void *result, char *name, void *number, void *error)"
  extern "char *spawnfd_result_text(void *result, char *name, void *length, void *error)"
  extern "char *spawnfd_result_reason(void *result)"
  extern "void spawnfd_result_free(void *result)"
  extern "void *spawnfd_session_open(void *command, void *error)"
  extern "void *spawnfd_session_run(void *session, char *text, void *options, void *error)"
  extern "void spawnfd_session_free(void *session)"
  extern "void *spawnfd_warm_new(unsigned int processes, unsigned long long memory, void *error)"
  extern "int spawnfd_warm_add(void *warm, char *program, unsigned int depth, void *error)"
  extern "int spawnfd_warm_fill(void *warm, int timeout_ms, void *error)"
  extern "void spawnfd_warm_free(void *warm)"

  # Calls a function with an error as its last argument, and raises SystemCallError if the function fails.
  def self.call(function, *arguments)
    error = Error.malloc(Fiddle::RUBY_FREE)
    error.size = Error.size
    answer = public_send(function, *arguments, error)
    failed = answer.is_a?(Integer) ? answer.negative? : answer.null?
    raise SystemCallError.new(error.message.pack("c*").unpack1("Z*"), error.error) if failed

    answer
  end
end

# Creates a command with options for the block; without words, it has only options.
def command(words, **options)
  strings = words&.map { |word| Fiddle::Pointer[word] }
  argv = strings && Fiddle::Pointer[[*strings.map(&:to_i), 0].pack("J*")]
  created = Native.call(:spawnfd_command_new, argv)
  options.each { |name, value| Native.call(:spawnfd_command_set, created, name.to_s, value) }
  yield created
ensure
  Native.spawnfd_command_free(created)
end

# Frees a result after the block.
def result_of(function, *arguments)
  result = Native.call(function, *arguments)
  yield result
ensure
  Native.spawnfd_result_free(result)
end

# A text of a result; empty if the result has no such text.
def text(result, name)
  length = Fiddle::Pointer.malloc(Fiddle::SIZEOF_SIZE_T, Fiddle::RUBY_FREE)
  found = Native.spawnfd_result_text(result, name, length, nil)
  found.null? ? "" : found[0, length[0, Fiddle::SIZEOF_SIZE_T].unpack1("J")]
end

def number(result, name)
  value = Fiddle::Pointer.malloc(Fiddle::SIZEOF_DOUBLE, Fiddle::RUBY_FREE)
  Native.call(:spawnfd_result_number, result, name, value)
  value[0, Fiddle::SIZEOF_DOUBLE].unpack1("D")
end

# Runs a program with a timeout and bounded output.
def bounded_run
  words = ["sh", "-c", "seq 100000; sleep 60"]
  command(words, timeout: "2s", keep: "4:7", marker: "[{omitted} omitted]") do |seq|
    result_of(:spawnfd_run, seq) do |result|
      print text(result, "stdout")
      ok = Native.spawnfd_result_ok(result)
      puts "stop: #{text(result, 'stop')}, ok: #{ok}, omitted: #{number(result, 'omitted_bytes').to_i} bytes"
      puts "reason: #{Native.spawnfd_result_reason(result)}"
    end
  end
end

# Prints the lines of a job while it runs, and writes to it.
def streamed_job
  words = ["sh", "-c", "echo ready; read word; echo got $word >&2; exit 3"]
  command(words, stdin: "stream") do |shell|
    job = Native.call(:spawnfd_start, shell)
    ready = IO.for_fd(Native.spawnfd_job_fd(job), autoclose: false)
    Native.call(:spawnfd_job_write, job, "hello\n", 6, -1)
    line = Native::Line.malloc(Fiddle::RUBY_FREE)
    line.size = Native::Line.size
    loop do
      # Other threads of Ruby run meanwhile.
      ready.wait_readable
      break if Native.call(:spawnfd_job_next_line, job, line, 0).zero?

      print %w[stdout stderr][line.stream - 1], ": ", line.text[0, line.length]
    rescue Errno::EAGAIN
      next
    end
    result_of(:spawnfd_job_wait, job, -1) { |result| puts "code: #{number(result, 'code').to_i}" }
  ensure
    Native.spawnfd_job_free(job)
  end
end

# Runs three commands in one shell.
def session
  command(["bash"]) do |bash|
    command(nil, timeout: "1s") do |options|
      session = Native.call(:spawnfd_session_open, bash)
      ["cd /usr; greeting=hello", "echo $greeting from $PWD", "sleep 60"].each do |code|
        result_of(:spawnfd_session_run, session, code, options) do |result|
          puts "#{text(result, 'stop')}: #{text(result, 'cwd')}"
          print text(result, "stdout")
        end
      end
    ensure
      Native.spawnfd_session_free(session)
    end
  end
end

# Starts a Python that has been started ahead.
def warm_start
  command(["python3", "-c", "print(6 * 7)"]) do |python|
    warm = Native.call(:spawnfd_warm_new, 0, 0)
    Native.call(:spawnfd_warm_add, warm, "python3", 1)
    Native.call(:spawnfd_warm_fill, warm, 10_000)
    Native.call(:spawnfd_command_set_warm, python, warm)
    result_of(:spawnfd_run, python) do |result|
      print text(result, "stdout")
      warn "started: #{text(result, 'started')}"
    end
  ensure
    Native.spawnfd_warm_free(warm)
  end
end

bounded_run
streamed_job
session
warm_start
