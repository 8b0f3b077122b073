-- Runs once in each new Lua state, before any script. Builds the globals that scripts see.
--
-- `host` has the functions that are written in Rust. Such a function returns `true` and its results, or `false` and
-- an error. The functions here raise that error, so that a script catches the same value as in Redis.
--
-- Scripts must not change the globals, because later scripts use the same state. So the table of globals is empty, and
-- reads go to `builtins` through a metatable. A library is such an empty table, too. `real` maps it to its content.
local host = ...
local error, type, rawget, rawset, select = error, type, rawget, rawset, select
local getmetatable, setmetatable, next, tostring = getmetatable, setmetatable, next, tostring
local pcall, xpcall, load, loadstring = pcall, xpcall, load, loadstring
local collectgarbage = collectgarbage
local coroutine_resume, coroutine_create = coroutine.resume, coroutine.create
local coroutine_status, coroutine_yield = coroutine.status, coroutine.yield
local concat, insert, remove, sort = table.concat, table.insert, table.remove, table.sort
local G = _G
local is_aborted, check_time = host.is_aborted, host.check_time

local MEMORY = "not enough memory"
local READONLY = "Attempt to modify a readonly table"
-- Elements from which a function of C is followed by a check of the time.
local MANY = 256

local real = setmetatable({}, { __mode = "k" })

local function refuse_write()
  error(READONLY, 2)
end

local function protect(content)
  local proxy = setmetatable({}, { __index = content, __newindex = refuse_write, __metatable = {} })
  real[proxy] = content
  return proxy
end

-- Returns the results of a function of the host, or raises its error.
local function results(ok, ...)
  if ok then
    return ...
  end
  error((...), 0)
end

local function raising(f)
  return function(...)
    return results(f(...))
  end
end

-- A caught error that ends the script is raised again: no script catches it.
local function caught(ok, ...)
  if ok then
    return ok, ...
  end
  local problem = ...
  if problem == MEMORY or is_aborted() then
    error(problem, 0)
  end
  if type(problem) == "table" and problem.err then
    return false, problem.err
  end
  return false, ...
end

local function passed_on(ok, ...)
  if not ok and (... == MEMORY or is_aborted()) then
    error((...), 0)
  end
  return ok, ...
end

local function timed(f)
  return function(t, ...)
    if type(t) == "table" and #t > MANY or type(t) == "string" and #t > MANY then
      check_time()
    end
    return f(t, ...)
  end
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
  unpack = unpack,
  getmetatable = getmetatable,
}
builtins._G = G

function builtins.pcall(...)
  return caught(pcall(...))
end

function builtins.xpcall(f, handler)
  return passed_on(xpcall(f, handler))
end

function builtins.next(t, key)
  return next(real[t] or t, key)
end

function builtins.pairs(t)
  return next, real[t] or t, nil
end

function builtins.rawset(t, key, value)
  if real[t] then
    error(READONLY, 0)
  end
  return rawset(t, key, value)
end

function builtins.setmetatable(t, meta)
  if real[t] then
    error(READONLY, 0)
  end
  return setmetatable(t, meta)
end

function builtins.collectgarbage(what, arg)
  if what == "count" or what == nil or what == "collect" then
    check_time()
    return collectgarbage(what or "collect", arg)
  end
  return 0
end

function builtins.loadstring(chunk, name)
  check_time()
  if no_bytecode(chunk) then
    return nil, "bytecode is not allowed"
  end
  return loadstring(chunk, name)
end

function builtins.load(f, name)
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
  return builtins.loadstring(concat(pieces), name or "=(load)")
end

-- Adds where the error was raised.
function builtins.__redis__err__handler(problem)
  if type(problem) == "string" and problem == MEMORY then
    return problem
  end
  local source, line = host.position()
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
tables.concat, tables.sort = timed(concat), timed(sort)
tables.foreach, tables.maxn = timed(table.foreach), timed(table.maxn)

function tables.insert(t, ...)
  local position, value = ...
  if select("#", ...) ~= 2 or type(t) ~= "table" or type(position) ~= "number" or #t < MANY then
    return insert(t, ...)
  end
  local last = #t + 1
  for i = last, position + 1, -1 do
    t[i] = t[i - 1]
  end
  t[position] = value
end

function tables.remove(t, position)
  if type(t) ~= "table" or type(position) ~= "number" or #t < MANY then
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
  strings[name] = raising(f)
end
for _, name in next, { "lower", "upper", "reverse" } do
  strings[name] = timed(string[name])
end
strings.gfind = strings.gmatch
builtins.string = protect(strings)
local string_meta = getmetatable("")
string_meta.__index = builtins.string
string_meta.__metatable = { __index = builtins.string }

local maths = copy(math)
for name, f in next, host.math do
  maths[name] = raising(f)
end
builtins.math = protect(maths)

local coroutines = copy(coroutine)
function coroutines.resume(...)
  return passed_on(coroutine_resume(...))
end
function coroutines.wrap(f)
  local thread = coroutine_create(f)
  return function(...)
    return results(coroutine_resume(thread, ...))
  end
end
builtins.coroutine = protect(coroutines)

for _, name in next, { "bit", "cjson", "cmsgpack", "struct" } do
  local library = {}
  for key, value in next, host[name] do
    library[key] = type(value) == "function" and raising(value) or value
  end
  builtins[name] = protect(library)
end

local redis = {}
for key, value in next, host.redis do
  redis[key] = type(value) == "function" and raising(value) or value
end
local call = host.call
local function answered(failed, reply)
  if failed then
    error(reply, 0)
  end
  return reply
end
function redis.call(...)
  return answered(call(true, ...))
end
function redis.pcall(...)
  return answered(call(false, ...))
end
builtins.redis = protect(redis)

setmetatable(builtins, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
})

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

return builtins, run
