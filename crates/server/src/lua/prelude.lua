-- Runs once in each new Lua state, before any script. Builds the globals that scripts see.
--
-- `host` has the functions that are written in Rust. Their errors are userdata, which `plain` converts to the strings
-- and tables that Redis raises, before a script sees them.
--
-- Scripts must not change the globals, because later scripts use the same state. So the table of globals is empty, and
-- reads go to `builtins` through a metatable. A library is such an empty table, too. `real` maps it to its content.
local host = ...
local error, type, rawget, rawset, select = error, type, rawget, rawset, select
local getmetatable, setmetatable, next, tostring = getmetatable, setmetatable, next, tostring
local tonumber, unpack, ipairs = tonumber, unpack, ipairs
local pcall, xpcall, load, loadstring = pcall, xpcall, load, loadstring
local setfenv, find, lower = setfenv, string.find, string.lower
local collectgarbage = collectgarbage
local coroutine_resume, coroutine_create = coroutine.resume, coroutine.create
local coroutine_status, coroutine_yield = coroutine.status, coroutine.yield
local concat, insert, remove = table.concat, table.insert, table.remove
local G = _G
local is_aborted, check_time = host.is_aborted, host.check_time

local MEMORY = "not enough memory"
local READONLY = "Attempt to modify a readonly table"
-- Elements from which a function checks the time.
local MANY = 256
-- Most values of a call, because each takes a slot of a limited stack.
local VALUES_MAX = 7000

local real = setmetatable({}, { __mode = "k" })

local function refuse_write()
  error(READONLY, 2)
end

local function protect(content)
  local proxy = setmetatable({}, { __index = content, __newindex = refuse_write, __metatable = {} })
  real[proxy] = content
  return proxy
end

-- Converts an error of the host.
local function plain(problem)
  if type(problem) == "userdata" then
    return host.plain(problem)
  end
  return problem
end

-- Converts a caught error. One that ends the script is raised again: no script catches it.
local function caught_problem(problem)
  if problem == MEMORY or is_aborted() then
    error(problem, 0)
  end
  return plain(problem)
end

local function caught(ok, ...)
  if ok then
    return ok, ...
  end
  local problem = caught_problem(...)
  if type(problem) == "table" and problem.err then
    return false, problem.err
  end
  return false, problem
end

local function passed_on(ok, ...)
  if ok then
    return ok, ...
  end
  return false, (caught_problem(...))
end

local function no_bytecode(chunk)
  return type(chunk) == "string" and chunk:byte(1) == 27
end

local builtins = {
  _VERSION = _VERSION,
  assert = assert,
  error = error,
  gcinfo = gcinfo,
  ipairs = ipairs,
  rawequal = rawequal,
  rawget = rawget,
  select = select,
  tonumber = tonumber,
  tostring = tostring,
  type = type,
  getmetatable = getmetatable,
}
builtins._G = G

local function expect_table(t, name)
  if type(t) ~= "table" then
    error("bad argument #1 to '" .. name .. "' (table expected, got " .. type(t) .. ")", 3)
  end
end

function builtins.pcall(...)
  return caught(pcall(...))
end

function builtins.xpcall(f, handler)
  return passed_on(xpcall(f, function(problem)
    return handler(plain(problem))
  end))
end

function builtins.next(t, key)
  expect_table(t, "next")
  return next(real[t] or t, key)
end

function builtins.pairs(t)
  expect_table(t, "pairs")
  return next, real[t] or t, nil
end

function builtins.rawset(t, key, value)
  if real[t] then
    error(READONLY, 0)
  end
  return rawset(t, key, value)
end

function builtins.setmetatable(t, meta)
  expect_table(t, "setmetatable")
  if meta ~= nil and type(meta) ~= "table" then
    error("bad argument #2 to 'setmetatable' (nil or table expected)", 2)
  end
  if real[t] then
    error(READONLY, 0)
  end
  return setmetatable(t, meta)
end

function builtins.unpack(t, first, last)
  expect_table(t, "unpack")
  if (tonumber(last) or #t) - (tonumber(first) or 1) >= VALUES_MAX then
    error("too many results to unpack", 2)
  end
  return unpack(t, first, last)
end

function builtins.collectgarbage(what, arg)
  if what == "count" or what == nil or what == "collect" then
    check_time()
    return collectgarbage(what or "collect", arg)
  end
  return 0
end

local function load_text(chunk, name)
  check_time()
  if no_bytecode(chunk) then
    return nil, "bytecode is not allowed"
  end
  return loadstring(chunk, name)
end
builtins.loadstring = load_text

-- Returns the text that the function of `load` produces, or nil and an error.
local function text_of(f)
  if type(f) ~= "function" then
    error("bad argument #1 to 'load' (function expected, got " .. type(f) .. ")", 2)
  end
  local pieces, size = {}, 0
  while true do
    local piece = f()
    if piece == nil or piece == "" then
      break
    end
    if type(piece) ~= "string" then
      return nil, "reader function must return a string"
    end
    size = size + 1
    pieces[size] = piece
  end
  return concat(pieces)
end

function builtins.load(f, name)
  local text, problem = text_of(f)
  if not text then
    return nil, problem
  end
  return load_text(text, name or "=(load)")
end

-- Adds where the error was raised.
function builtins.__redis__err__handler(problem)
  if type(problem) == "string" and problem == MEMORY then
    return problem
  end
  local source, line = host.position()
  problem = plain(problem)
  if type(problem) ~= "table" then
    problem = { err = "ERR " .. tostring(problem) }
  end
  if source then
    problem.source, problem.line = source, line
  end
  return problem
end

local function copy(t)
  local c = {}
  for k, v in next, t do
    c[k] = v
  end
  return c
end

-- table: functions whose time depends on the table's length check the time, or are written in Lua.
local tables = copy(table)
for name, f in next, host.table do
  tables[name] = f
end

local function timed(name)
  local own = table[name]
  return function(t, f)
    expect_table(t, name)
    if #t > MANY then
      check_time()
    end
    return own(t, f)
  end
end
for _, name in next, { "foreach", "foreachi", "sort" } do
  tables[name] = timed(name)
end

function tables.insert(t, ...)
  expect_table(t, "insert")
  local position, value = ...
  local count = select("#", ...)
  if count < 1 or count > 2 then
    error("wrong number of arguments to 'insert'", 2)
  end
  if count == 1 or type(position) ~= "number" or #t < MANY then
    return insert(t, ...)
  end
  local last = #t + 1
  for i = last, position + 1, -1 do
    t[i] = t[i - 1]
  end
  t[position] = value
end

function tables.remove(t, position)
  expect_table(t, "remove")
  if type(position) ~= "number" or #t < MANY then
    if position == nil then
      return remove(t)
    end
    return remove(t, position)
  end
  local last = #t
  if position < 1 or position > last then
    return nil
  end
  local value = t[position]
  for i = position, last - 1 do
    t[i] = t[i + 1]
  end
  t[last] = nil
  return value
end
builtins.table = protect(tables)

local strings = copy(string)
for name, f in next, host.string do
  strings[name] = f
end
local next_match = strings.next_match
strings.next_match = nil
function strings.gmatch(s, pattern)
  for position, value in ipairs({ s or false, pattern or false }) do
    if type(value) ~= "string" and type(value) ~= "number" then
      local found = value and type(value) or "no value"
      error("bad argument #" .. position .. " to 'gmatch' (string expected, got " .. found .. ")", 2)
    end
  end
  local from = 0
  local function step(following, ...)
    from = following
    return ...
  end
  return function()
    if from == nil then
      return nil
    end
    return step(next_match(s, pattern, from))
  end
end
strings.gfind = strings.gmatch
builtins.string = protect(strings)
local string_meta = getmetatable("")
string_meta.__index = builtins.string
string_meta.__metatable = protect({ __index = builtins.string })

local maths = copy(math)
for name, f in next, host.math do
  maths[name] = f
end
builtins.math = protect(maths)

local coroutines = copy(coroutine)
function coroutines.resume(thread, ...)
  if type(thread) ~= "thread" then
    error("bad argument #1 to 'resume' (coroutine expected)", 2)
  end
  return passed_on(coroutine_resume(thread, ...))
end
function coroutines.wrap(f)
  if type(f) ~= "function" then
    error("bad argument #1 to 'wrap' (Lua function expected)", 2)
  end
  local thread = coroutine_create(f)
  local function results(ok, ...)
    if ok then
      return ...
    end
    local problem = plain(...)
    error(problem, type(problem) == "string" and 3 or 0)
  end
  return function(...)
    return results(coroutine_resume(thread, ...))
  end
end
builtins.coroutine = protect(coroutines)

for _, name in next, { "bit", "cjson", "cmsgpack", "redis", "struct" } do
  builtins[name] = protect(host[name])
end

-- The globals of functions: those of scripts, with fewer functions of `redis`. Every library has the environment
-- `functions`. While a library is loaded, the environment has `redis` with `register_function` only.
local function nonexistent(_, name)
  error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
end

local functions = {}
local function_builtins = copy(builtins)
function_builtins.__redis__err__handler = nil
function_builtins._G = functions
local redis_of_functions = copy(host.redis)
for _, name in next, { "breakpoint", "debug", "replicate_commands" } do
  redis_of_functions[name] = nil
end
function_builtins.redis = protect(redis_of_functions)

local function in_functions(chunk, problem)
  if chunk then
    setfenv(chunk, functions)
  end
  return chunk, problem
end

function function_builtins.loadstring(chunk, name)
  return in_functions(load_text(chunk, name))
end

function function_builtins.load(f, name)
  local text, problem = text_of(f)
  if not text then
    return nil, problem
  end
  return in_functions(load_text(text, name or "=(load)"))
end
setmetatable(function_builtins, { __index = nonexistent })

-- The functions that the library which is being loaded has registered: `callbacks` by their names in lower case, and a
-- list of names, descriptions and flags.
local registered

local function refuse(text)
  error({ err = "ERR " .. text }, 0)
end

local function is_text(value)
  return type(value) == "string" or type(value) == "number"
end

local FLAGS = {
  ["no-writes"] = 1,
  ["allow-oom"] = 2,
  ["allow-stale"] = 3,
  ["no-cluster"] = 4,
  ["allow-cross-slot-keys"] = 5,
}

local function flags_of(names)
  if type(names) ~= "table" then
    refuse("flags argument to redis.register_function must be a table representing function flags")
  end
  local flags = { false, false, false, false, false }
  for _, name in ipairs(names) do
    local flag = type(name) == "string" and FLAGS[lower(name)]
    if not flag then
      refuse("unknown flag given")
    end
    flags[flag] = true
  end
  return flags
end

local function named(arguments)
  local name, callback, flags, description
  for key, value in next, arguments do
    if not is_text(key) then
      refuse("named argument key given to redis.register_function is not a string")
    end
    key = lower(key)
    if key == "function_name" then
      if not is_text(value) then
        refuse("function_name argument given to redis.register_function must be a string")
      end
      name = value
    elseif key == "description" then
      if not is_text(value) then
        refuse("description argument given to redis.register_function must be a string")
      end
      description = tostring(value)
    elseif key == "callback" then
      if type(value) ~= "function" then
        refuse("callback argument given to redis.register_function must be a function")
      end
      callback = value
    elseif key == "flags" then
      flags = flags_of(value)
    else
      refuse("unknown argument given to redis.register_function")
    end
  end
  if not name then
    refuse("redis.register_function must get a function name argument")
  end
  if not callback then
    refuse("redis.register_function must get a callback argument")
  end
  return name, callback, flags, description
end

local function positional(name, callback)
  if not is_text(name) then
    refuse("first argument to redis.register_function must be a string")
  end
  if type(callback) ~= "function" then
    refuse("second argument to redis.register_function must be a function")
  end
  return name, callback
end

local function register_function(...)
  if not registered then
    refuse("redis.register_function can only be called on FUNCTION LOAD command")
  end
  local count, first = select("#", ...), ...
  local name, callback, flags, description
  if count < 1 or count > 2 then
    refuse("wrong number of arguments to redis.register_function")
  elseif count == 2 then
    name, callback = positional(...)
  elseif type(first) ~= "table" then
    refuse(
      "calling redis.register_function with a single argument is only applicable to Lua table (representing named arguments)."
    )
  else
    name, callback, flags, description = named(first)
  end
  name = tostring(name)
  if not find(name, "^[%w_]+$") then
    refuse("Library names can only contain letters, numbers, or underscores(_) and must be at least one character long")
  end
  local key = lower(name)
  if registered.callbacks[key] then
    refuse("Function already exists in the library")
  end
  registered.callbacks[key] = callback
  insert(registered.list, { name, description or false, unpack(flags or {}) })
end

local loading = { redis = { register_function = register_function, log = host.redis.log } }
for name, value in next, host.redis do
  if find(name, "^LOG_") or find(name, "^REDIS_VERSION") then
    loading.redis[name] = value
  end
end
setmetatable(loading.redis, { __index = nonexistent })
loading.redis = protect(loading.redis)
setmetatable(loading, { __index = nonexistent })

local functions_meta = { __index = function_builtins, __newindex = refuse_write, __metatable = {} }
setmetatable(functions, functions_meta)
real[functions] = function_builtins

setmetatable(builtins, { __index = nonexistent })

for name in next, copy(G) do
  G[name] = nil
end
setmetatable(G, { __index = builtins, __newindex = refuse_write, __metatable = {} })
real[G] = builtins

-- Runs a script; `handler` adds the position to its error.
local handler = builtins.__redis__err__handler
local function run(script)
  return xpcall(script, handler)
end

-- Runs a function of a library.
local function call(f, keys, args)
  return xpcall(function()
    return f(keys, args)
  end, handler)
end

-- Loads a library. Returns an error, or nil, its callbacks and the list of its functions.
local function load_library(source)
  local chunk, message = loadstring(source, "@user_function")
  if not chunk then
    return "compiling function: " .. message
  end
  setfenv(chunk, functions)
  functions_meta.__index = loading
  registered = { callbacks = {}, list = {} }
  local ok, problem = xpcall(chunk, handler)
  local loaded = registered
  functions_meta.__index = function_builtins
  registered = nil
  if not ok then
    local text = type(problem) == "table" and problem.err or problem
    return "registering functions: " .. tostring(text)
  end
  return nil, loaded.callbacks, loaded.list
end

return builtins, run, builtins.loadstring, call, load_library
