// The interface of an engine for the Tair contest of 2020: these classes, in a library libengine.a.
//
// Names and signatures are the contest's, so that its engines compile with this file unchanged. The
// engine defines DB::CreateOrOpen and DB::~DB.

#ifndef FARBANK_CONTEST_DB_HPP
#define FARBANK_CONTEST_DB_HPP

#include <stdint.h>

#include <cstdio>
#include <cstring>
#include <string>

enum Status : unsigned char {
    Ok,
    NotFound,
    IOError,
    OutOfMemory
};

// A reference to bytes that the slice does not own.
class Slice {
public:
    Slice() : at_(nullptr), bytes_(0) {}
    Slice(char* text) : at_(text), bytes_(std::strlen(text)) {}
    Slice(char* bytes, uint64_t count) : at_(bytes), bytes_(count) {}

    char*& data() { return at_; }
    char* data() const { return at_; }
    uint64_t& size() { return bytes_; }
    uint64_t size() const { return bytes_; }

    bool operator==(const Slice& other) const {
        return bytes_ == other.bytes_ && std::memcmp(at_, other.at_, bytes_) == 0;
    }

    std::string to_string() const { return std::string(at_, bytes_); }

private:
    char* at_;
    uint64_t bytes_;
};

class DB {
public:
    // Opens the engine in the file `name`, or creates a new one. `log_file` may be null.
    static Status CreateOrOpen(const std::string& name, DB** dbptr, FILE* log_file = nullptr);

    // Replaces `value` with the value of the key. Returns NotFound if there is none.
    virtual Status Get(const Slice& key, std::string* value) = 0;

    // Stores the value and replaces an older value of the key. When it returns Ok, the value is durable.
    virtual Status Set(const Slice& key, const Slice& value) = 0;

    virtual ~DB() = 0;
};

// Part of the contest's header; engines do not have to use it.
class Visitor {
public:
    virtual ~Visitor() {}
    virtual void Visit(const Slice& key, const Slice& value) = 0;
};

#endif
