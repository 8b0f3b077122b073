//! CONFIG REWRITE of `farbank serve redis.conf` as a process: the file, a second start, failures and kills.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_farbank");

/// A server that has printed its banner.
struct Server {
    child: Child,
    /// Open, so that the server can print.
    _stdout: BufReader<ChildStdout>,
    addr: String,
}

impl Server {
    /// Starts a server with the file `conf`. It chooses a port unless the file names one.
    fn start(conf: &Path, more: &[&str]) -> Server {
        let mut command = Command::new(PROGRAM);
        command.arg("serve").arg(conf).args(more);
        Server::spawn(command)
    }

    fn spawn(mut command: Command) -> Server {
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        stdout.read_line(&mut banner).unwrap();
        let addr = banner.split("redis://").nth(1);
        let addr = addr.unwrap_or_else(|| panic!("no address in {banner:?}"));
        let addr = addr.split_whitespace().next().unwrap().to_owned();
        Server {
            child,
            _stdout: stdout,
            addr,
        }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(&self.addr).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        Client(BufReader::new(stream))
    }

    fn stop(mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap();
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, request: &[u8]) {
        self.0.get_mut().write_all(request).unwrap();
        self.0.get_mut().write_all(b"\r\n").unwrap();
    }

    /// Sends an inline request. Returns the texts of its reply.
    fn texts(&mut self, request: &[u8]) -> Vec<Vec<u8>> {
        self.send(request);
        let mut texts = Vec::new();
        self.read(&mut texts);
        texts
    }

    fn read(&mut self, texts: &mut Vec<Vec<u8>>) {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).unwrap();
        let line = line.trim_ascii_end();
        let number = || {
            std::str::from_utf8(&line[1..])
                .unwrap()
                .parse::<i64>()
                .unwrap()
        };
        match line.first() {
            Some(b'*') => (0..number()).for_each(|_| self.read(texts)),
            Some(b'$') if number() >= 0 => {
                let mut bytes = vec![0; usize::try_from(number()).unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                texts.push(bytes);
            }
            _ => texts.push(line.to_vec()),
        }
    }

    fn ask(&mut self, request: &str) -> String {
        let texts = self.texts(request.as_bytes());
        let texts = texts.iter().map(|text| String::from_utf8_lossy(text));
        texts.collect::<Vec<_>>().join(" ")
    }

    fn rewrite(&mut self) {
        assert_eq!(self.ask("CONFIG REWRITE"), "+OK");
    }
}

/// A folder with a redis.conf.
fn conf_in(folder: &Path, text: &str) -> PathBuf {
    let conf = folder.join("redis.conf");
    fs::write(&conf, text).unwrap();
    conf
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn comments_order_and_unknown_lines_stay_and_new_values_follow_the_signature() {
    let folder = tempfile::tempdir().unwrap();
    let shown = folder.path().display();
    let text = format!(
        "# first comment\nmaxmemory 1gb\n  TIMEOUT   7  \n\n\n# second comment\nslowlog-max-len 5\nunknown-directive x \"y z\"\n\
         save 900 1\nsave 300 10\nmaxmemory 2gb\nhash-max-ziplist-entries 20\n\
         client-output-buffer-limit pubsub 64mb 16mb 90\nuser old on nopass ~* +@all\n\
         bind 127.0.0.1 -::1\nmaxclients 50\ndatabases 16\nsize 16mb\nmemcached-port off\ndir {shown}\nappendonly no\nhz 10\n"
    );
    let conf = conf_in(folder.path(), &text);
    let server = Server::start(&conf, &["--port", "0"]);
    let mut client = server.client();
    let port = server.addr.rsplit(':').next().unwrap().to_owned();
    for request in [
        "CONFIG SET maxmemory 104857600",
        "CONFIG SET notify-keyspace-events KEA proto-max-bulk-len 1048577",
        "CONFIG SET lua-time-limit 77 latency-tracking no slave-priority 5",
        "ACL DELUSER old",
    ] {
        assert!(!client.ask(request).starts_with('-'), "{request}");
    }
    client.rewrite();
    let expected = format!(
        "# first comment\nmaxmemory 100mb\ntimeout 7\n\n# second comment\nslowlog-max-len 5\nunknown-directive x \"y z\"\n\
         save 900 1\nsave 300 10\n\nhash-max-listpack-entries 20\n\
         client-output-buffer-limit normal 1gb 0 0\nuser default on nopass ~* &* +@all\n\
         bind 127.0.0.1 -::1\nmaxclients 50\ndatabases 16\nsize 16mb\nmemcached-port off\ndir \"{shown}\"\nappendonly no\nhz 10\n\n\
         # Generated by CONFIG REWRITE\nproto-max-bulk-len 1048577\nbusy-reply-threshold 77\nlatency-tracking no\n\
         notify-keyspace-events \"AKE\"\nlatency-tracking-info-percentiles 50 99 99.9\nreplica-priority 5\n\
         client-output-buffer-limit pubsub 64mb 16mb 90\nport {port}\n"
    );
    let sorted = |text: &str| {
        let (head, tail) = text.split_once("# Generated").unwrap();
        let tail = tail.lines().filter(|line| !line.is_empty());
        let mut tail: Vec<_> = tail.map(str::to_owned).collect();
        tail.sort();
        (head.to_owned(), tail)
    };
    assert_eq!(sorted(&read(&conf)), sorted(&expected));
    // As in Redis, the next class takes the line of the last one.
    client.rewrite();
    let pubsub = "client-output-buffer-limit pubsub 64mb 16mb 90\n";
    let replica = "client-output-buffer-limit replica 256mb 64mb 60\n";
    let expected = format!("{}\n{pubsub}", expected.replace(pubsub, replica));
    assert_eq!(sorted(&read(&conf)), sorted(&expected));
    client.rewrite();
    assert_eq!(
        sorted(&read(&conf)),
        sorted(&expected),
        "a third rewrite changes nothing"
    );
    server.stop(Signal::TERM);
}

/// All parameters with their values.
fn parameters(client: &mut Client) -> Vec<Vec<u8>> {
    let mut found = client.texts(b"CONFIG GET *");
    assert!(found.len() > 100);
    let mut pairs: Vec<_> = found.chunks_mut(2).map(|pair| pair.concat()).collect();
    pairs.sort();
    pairs
}

/// All users. As in Redis, the user `default` gets the flag `sanitize-payload` when its rules are read from a file.
fn users(client: &mut Client) -> Vec<String> {
    let users = client.texts(b"ACL LIST").into_iter();
    let shown = users.map(|user| String::from_utf8_lossy(&user).into_owned());
    shown
        .map(|user| user.replace(" sanitize-payload", ""))
        .collect()
}

#[test]
fn a_second_start_has_the_same_parameters_users_and_keys() {
    let folder = tempfile::tempdir().unwrap();
    let conf = conf_in(folder.path(), "size 16mb\n");
    let backups = folder.path().join("backups");
    fs::create_dir(&backups).unwrap();
    let pool = folder.path().join("own.pool");
    let socket = folder.path().join("socket");
    let options = [
        "--port",
        "0",
        "--pool",
        pool.to_str().unwrap(),
        "--unixsocket",
        socket.to_str().unwrap(),
        "--workers",
        "2",
        "--sync",
        "never",
        "--enable-debug-command",
        "yes",
        "--memcached-port",
        "off",
        "--set",
        "hz=33",
        "--set",
        "maxclients=50",
    ];
    let server = Server::start(&conf, &options);
    let mut client = server.client();
    let folder_set = format!(
        "CONFIG SET dir {} dbfilename \"my dump.rdb\"",
        backups.display()
    );
    let requests: &[&[u8]] = &[
        folder_set.as_bytes(),
        b"CONFIG SET maxmemory-clients 1536mb client-output-buffer-limit \"replica 1 2 3 normal 3gb 1kb 4\"",
        b"CONFIG SET slowlog-log-slower-than -1 maxmemory-policy allkeys-lru maxmemory 1234567",
        b"CONFIG SET latency-tracking-info-percentiles \"\" acl-pubsub-default allchannels",
        b"CONFIG SET replica-announce-ip \"a \\\"b\\\" \\\\\" loglevel verbose set-max-intset-entries 7",
        b"CONFIG SET requirepass \"\\xff\\x00\\n'\\\"pass\"",
        b"AUTH default \"\\xff\\x00\\n'\\\"pass\"",
        b"ACL SETUSER \"qu'ote\" on >secret ~\"a\\\"b*\" ~\"\\xff*\" (+get ~x) +@read",
        b"SET key value",
    ];
    for request in requests {
        let reply = client.texts(request);
        assert_eq!(reply, [b"+OK"], "{}", String::from_utf8_lossy(request));
    }
    let (before, users) = (parameters(&mut client), users(&mut client));
    client.rewrite();
    server.stop(Signal::KILL);
    let server = Server::start(&conf, &["--memcached-port", "off"]);
    let mut client = server.client();
    assert_eq!(client.ask("AUTH default \"\\xff\\x00\\n'\\\"pass\""), "+OK");
    assert_eq!(client.ask("GET key"), "value", "the pool is the same one");
    assert_eq!(self::users(&mut client), users);
    assert_eq!(parameters(&mut client), before);
    let info = client.ask("INFO server");
    let line = format!("config_file:{}\r\n", conf.display());
    assert!(info.contains(&line), "{info}");
    // All parameters, whether they have their defaults or not.
    assert_eq!(client.ask("DEBUG CONFIG-REWRITE-FORCE-ALL"), "+OK");
    server.stop(Signal::TERM);
    let server = Server::start(&conf, &["--memcached-port", "off"]);
    let mut client = server.client();
    client.ask("AUTH default \"\\xff\\x00\\n'\\\"pass\"");
    assert_eq!(parameters(&mut client), before);
    server.stop(Signal::TERM);
}

#[test]
fn a_removed_user_and_a_removed_password_do_not_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let text = "user alice on >a ~* +@all\nrequirepass x\nuser bob on >b ~* +@all\nsize 16mb\nmemcached-port off\n";
    let conf = conf_in(folder.path(), text);
    let pool = folder.path().join("farbank.pool");
    let server = Server::start(&conf, &["--port", "0", "--pool", pool.to_str().unwrap()]);
    let mut client = server.client();
    for request in ["AUTH x", "CONFIG SET requirepass \"\""] {
        assert_eq!(client.ask(request), "+OK");
    }
    assert_eq!(client.ask("ACL DELUSER alice bob"), ":2");
    client.rewrite();
    server.stop(Signal::TERM);
    let text = read(&conf);
    let users = text.lines().filter(|line| line.starts_with("user "));
    assert_eq!(users.count(), 1, "{text}");
    assert!(!text.contains("requirepass"), "{text}");
    let server = Server::start(&conf, &[]);
    assert_eq!(server.client().ask("ACL USERS"), "default");
    server.stop(Signal::TERM);
}

#[test]
fn with_an_acl_file_users_and_passwords_stay_out_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("users.acl"),
        "user carol on nopass ~* +@all\n",
    )
    .unwrap();
    let text = format!(
        "aclfile users.acl\nsize 16mb\ndir {}\n",
        folder.path().display()
    );
    let conf = conf_in(folder.path(), &text);
    let server = Server::start(&conf, &["--port", "0", "--memcached-port", "off"]);
    let mut client = server.client();
    assert_eq!(client.ask("CONFIG SET requirepass secret"), "+OK");
    client.rewrite();
    server.stop(Signal::TERM);
    let text = read(&conf);
    assert!(
        !text.contains("secret") && !text.contains("user "),
        "{text}"
    );
    let line = format!("aclfile \"{}/users.acl\"\n", folder.path().display());
    assert!(text.contains(&line), "{text}");
    let server = Server::start(&conf, &["--memcached-port", "off"]);
    assert_eq!(server.client().ask("ACL USERS"), "carol default");
    server.stop(Signal::TERM);
}

#[test]
fn without_a_redis_conf_in_scripts_and_in_transactions_it_replies_as_redis() {
    let folder = tempfile::tempdir().unwrap();
    let conf = conf_in(folder.path(), "size 16mb\n");
    let options = ["--port", "0", "--pool", "none", "--memcached-port", "off"];
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--size", "16mb"]).args(options);
    let server = Server::spawn(command);
    let no_file = "-ERR The server is running without a config file";
    assert_eq!(server.client().ask("CONFIG REWRITE"), no_file);
    server.stop(Signal::TERM);
    let server = Server::start(&conf, &options);
    let mut client = server.client();
    let refused = client.ask("EVAL \"return redis.call('config', 'rewrite')\" 0");
    assert!(
        refused.starts_with("-ERR This Redis command is not allowed from script"),
        "{refused}"
    );
    assert_eq!(
        client.ask("CONFIG REWRITE x").split('\'').nth(1),
        Some("config|rewrite")
    );
    for (request, reply) in [
        ("MULTI", "+OK"),
        ("SET a 1", "+QUEUED"),
        ("CONFIG SET timeout 9", "+QUEUED"),
        ("CONFIG REWRITE", "+QUEUED"),
        ("EXEC", "+OK +OK +OK"),
    ] {
        assert_eq!(client.ask(request), reply, "{request}");
    }
    assert!(read(&conf).contains("\ntimeout 9\n"));
    assert!(read(&conf).contains("\npool \"none\"\n"));
    server.stop(Signal::TERM);
}

#[test]
fn a_failed_rewrite_names_the_reason_and_leaves_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let conf = conf_in(folder.path(), "size 16mb\n");
    let options = ["--port", "0", "--pool", "none", "--memcached-port", "off"];
    let failed = |command: Command, reason: &str, arrange: &dyn Fn()| {
        let server = Server::spawn(command);
        arrange();
        let mut client = server.client();
        let reply = client.ask("CONFIG REWRITE");
        assert_eq!(reply, format!("-ERR Rewriting config file: {reason}"));
        assert_eq!(client.ask("PING"), "+PONG");
        server.stop(Signal::TERM);
    };
    let limited = |limit: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", limit, "sh", PROGRAM, "serve"]);
        command.arg(&conf).args(options);
        command
    };
    // Root may write read-only folders, unless it lacks this right.
    let drop_rights = "d=-dac_override,-dac_read_search; if [ \"$(id -u)\" = 0 ]; \
                       then exec setpriv --bounding-set=$d \"$@\"; fi; exec \"$@\"";
    let set_mode = |mode: u32| fs::set_permissions(folder.path(), Permissions::from_mode(mode));
    failed(limited(drop_rights), "Permission denied", &|| {
        set_mode(0o555).unwrap()
    });
    set_mode(0o755).unwrap();
    assert_eq!(read(&conf), "size 16mb\n");
    failed(limited("exec \"$@\""), "Is a directory", &|| {
        fs::remove_file(&conf).unwrap();
        fs::create_dir(&conf).unwrap();
    });
    fs::remove_dir(&conf).unwrap();
    fs::write(&conf, "size 16mb\n").unwrap();
    failed(limited("exec \"$@\""), "No such file or directory", &|| {
        fs::remove_dir_all(folder.path()).unwrap();
    });
}

#[test]
fn a_full_disk_leaves_the_old_file_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let conf = folder.path().join("redis.conf");
    // A file system of 20 KiB, which only the server sees: 12 KiB are in use, and a new file needs 12 KiB.
    let script = "mount -t tmpfs -o size=20k none \"$0\" && head -c 8100 /dev/zero | tr '\\0' '#' > \"$0/redis.conf\" && \
                  echo > \"$0/other\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    command
        .arg(folder.path())
        .arg(PROGRAM)
        .arg("serve")
        .arg(&conf);
    command.args([
        "--size",
        "16mb",
        "--port",
        "0",
        "--pool",
        "none",
        "--memcached-port",
        "off",
    ]);
    let server = Server::spawn(command);
    let seen = PathBuf::from(format!("/proc/{}/root", server.child.id()));
    let seen = seen.join(folder.path().strip_prefix("/").unwrap());
    let names = || fs::read_dir(&seen).unwrap().count();
    let old = read(&seen.join("redis.conf"));
    assert_eq!((names(), old.len()), (2, 8100));
    let reply = server.client().ask("CONFIG REWRITE");
    assert_eq!(reply, "-ERR Rewriting config file: No space left on device");
    assert_eq!(read(&seen.join("redis.conf")), old);
    assert_eq!(names(), 2);
    fs::remove_file(seen.join("other")).unwrap();
    server.client().rewrite();
    assert!(read(&seen.join("redis.conf")).starts_with(&format!("{old}\n# Generated by")));
    server.stop(Signal::TERM);
}

#[test]
fn permissions_and_a_symbolic_link_stay() {
    let folder = tempfile::tempdir().unwrap();
    let (real, link) = (folder.path().join("real"), folder.path().join("link"));
    fs::write(&real, "size 16mb\ntimeout 1\n").unwrap();
    fs::set_permissions(&real, Permissions::from_mode(0o440)).unwrap();
    symlink("real", &link).unwrap();
    let options = ["--port", "0", "--pool", "none", "--memcached-port", "off"];
    let server = Server::start(&link, &options);
    let mut client = server.client();
    assert_eq!(client.ask("CONFIG SET timeout 2"), "+OK");
    client.rewrite();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(read(&real).contains("\ntimeout 2\n"));
    assert_eq!(fs::metadata(&real).unwrap().mode() & 0o777, 0o440);
    // A file that was removed is written again.
    fs::remove_file(&real).unwrap();
    fs::remove_file(&link).unwrap();
    client.rewrite();
    assert!(read(&link).starts_with("# Generated by CONFIG REWRITE\n"));
    server.stop(Signal::TERM);
}

#[test]
fn a_kill_leaves_the_old_or_the_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let comment = "# comment\n".repeat(20_000);
    let conf = conf_in(folder.path(), &format!("{comment}size 16mb\ntimeout 0\n"));
    let options = ["--port", "0", "--pool", "none", "--memcached-port", "off"];
    // The second rewrite describes the user `default` as a start from the file does.
    let mut took = Duration::ZERO;
    for options in [&options[..], &options[2..]] {
        let server = Server::start(&conf, options);
        let began = Instant::now();
        server.client().rewrite();
        took = began.elapsed();
        server.stop(Signal::TERM);
    }
    let text = read(&conf);
    let (mut olds, mut news) = (0, 0);
    for round in 0..30 {
        fs::write(&conf, &text).unwrap();
        let server = Server::start(&conf, &options[2..]);
        let mut client = server.client();
        assert_eq!(client.ask("CONFIG SET timeout 5"), "+OK");
        client.send(b"CONFIG REWRITE");
        // The kills are spread over twice the time of a rewrite; the last one comes after its reply.
        match round {
            29 => client.read(&mut Vec::new()),
            round => std::thread::sleep(took * round / 15),
        }
        server.stop(Signal::KILL);
        let found = read(&conf);
        if found == text {
            olds += 1;
        } else {
            let new = text.replace("timeout 0\n", "timeout 5\n");
            assert!(found == new, "round {round}: {} bytes", found.len());
            news += 1;
        }
    }
    assert!(
        news > 0 && olds + news == 30,
        "{olds} old files, {news} new ones"
    );
}

#[test]
fn under_the_name_redis_server_options_of_the_command_line_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let conf = conf_in(folder.path(), "size 16mb\nmaxmemory 1mb\ntimeout 1\n");
    let named = folder.path().join("redis-server");
    symlink(PROGRAM, &named).unwrap();
    let start = |more: &[&str]| {
        let mut command = Command::new(&named);
        command.arg(&conf).args(more).current_dir(folder.path());
        Server::spawn(command)
    };
    // Redis has no port that the system chooses, so this is one that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let shown = folder.path().display().to_string();
    let given = [
        "--port",
        &port,
        "--maxmemory",
        "3mb",
        "--dir",
        &shown,
        "--protected-mode",
        "no",
    ];
    let server = start(&given);
    let mut client = server.client();
    let before = parameters(&mut client);
    client.rewrite();
    server.stop(Signal::TERM);
    let text = read(&conf);
    for line in [
        "maxmemory 3mb",
        "timeout 1",
        "protected-mode no",
        &format!("port {port}"),
    ] {
        assert!(text.lines().any(|own| own == line), "{line}: {text}");
    }
    assert!(!text.contains("bind") && !text.contains("pool"), "{text}");
    let server = start(&[]);
    assert_eq!(parameters(&mut server.client()), before);
    server.stop(Signal::TERM);
}

#[test]
fn a_server_with_a_unix_socket_only_writes_no_address() {
    let folder = tempfile::tempdir().unwrap();
    let text = "port 0\nunixsocket socket\nsize 16mb\npool none\nmemcached-port off\n";
    let conf = conf_in(folder.path(), text);
    let start = || {
        let mut command = Command::new(PROGRAM);
        command.arg("serve").arg(&conf).current_dir(folder.path());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut String::new()).unwrap();
        (child, stdout)
    };
    for _ in 0..2 {
        let (mut child, _stdout) = start();
        let mut client = UnixStream::connect(folder.path().join("socket")).unwrap();
        client.write_all(b"CONFIG REWRITE\r\n").unwrap();
        let mut reply = [0; 5];
        client.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+OK\r\n");
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success());
    }
    let text = read(&conf);
    let line = format!(
        "port 0\nunixsocket \"{}/socket\"\n",
        folder.path().display()
    );
    assert!(text.starts_with(&line) && !text.contains("bind"), "{text}");
}
