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

function builtins.loadstring(chunk, name)
  check_time()
  if no_bytecode(chunk) then
    return nil, "bytecode is not allowed"
  end
  return loadstring(chunk, name)
end

function builtins.load(f, name)
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
  return builtins.loadstring(concat(pieces), name or "=(load)")
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

return builtins, run, builtins.loadstring
