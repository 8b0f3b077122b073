//! Lane `redis-clients`: redis-cli, redis-benchmark and redis-py against a real server.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Size;
use crate::run::{farbank, install, output, root, succeed, works};

/// Debian's Python: the one its packages are for.
const PYTHON: &str = "/usr/bin/python3";

pub(crate) fn run(_size: Size) -> Result<(), String> {
    packages()?;
    let folder = Folder::new()?;
    let server = Server::start(&folder.pool())?;
    scripted_session(&server)?;
    python(&server)?;
    benchmark(&server)?;
    kill_and_compare(server, &folder)
}

fn packages() -> Result<(), String> {
    let mut missing = Vec::new();
    if !works("redis-cli", &["--version"]) || !works("redis-benchmark", &["--version"]) {
        missing.push("redis-tools");
    }
    if !works(PYTHON, &["-c", "import redis"]) {
        missing.push("python3-redis");
    }
    if missing.is_empty() {
        Ok(())
    } else {
        install(&missing)
    }
}

/// What redis-cli prints for `session.txt` must be `session.expected`.
fn scripted_session(server: &Server) -> Result<(), String> {
    let script = fs::File::open(file("session.txt")).map_err(|e| e.to_string())?;
    let printed = output(server.cli().arg("--no-raw").stdin(script))?;
    let expected = fs::read_to_string(file("session.expected")).map_err(|e| e.to_string())?;
    for (number, (found, line)) in printed.lines().zip(expected.lines()).enumerate() {
        if found != line {
            let number = number + 1;
            return Err(format!(
                "redis-cli, line {number}: {found:?}, expected {line:?}"
            ));
        }
    }
    match printed == expected {
        true => Ok(()),
        false => Err("redis-cli printed more or fewer lines than expected".into()),
    }
}

fn python(server: &Server) -> Result<(), String> {
    succeed(
        Command::new(PYTHON)
            .arg(file("clients.py"))
            .arg(&server.port),
    )
}

fn benchmark(server: &Server) -> Result<(), String> {
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &server.port, "-t", "set,get,incr,mset"]);
    let text = output(command.args(["-n", "20000", "-P", "16", "-q"]))?;
    let results = text.matches("requests per second").count();
    match results == 4 && !text.contains("rror") {
        true => Ok(()),
        false => Err(format!(
            "redis-benchmark gave {results} results, expected 4, or an error"
        )),
    }
}

/// What was acknowledged is there after SIGKILL.
fn kill_and_compare(server: Server, folder: &Folder) -> Result<(), String> {
    let ask = |server: &Server| -> Result<String, String> {
        let size = output(server.cli().arg("dbsize").stdin(Stdio::null()))?;
        Ok(size + &output(server.cli().args(["get", "durable"]).stdin(Stdio::null()))?)
    };
    output(
        server
            .cli()
            .args(["set", "durable", "yes"])
            .stdin(Stdio::null()),
    )?;
    let before = ask(&server)?;
    drop(server);
    let after = ask(&Server::start(&folder.pool())?)?;
    match before == after {
        true => Ok(()),
        false => Err(format!("before the kill {before:?}, after it {after:?}")),
    }
}

fn file(name: &str) -> PathBuf {
    root().join("xtask/clients").join(name)
}

/// A folder in memory that goes when this goes.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, String> {
        let parent = Some(Path::new("/dev/shm")).filter(|shm| shm.is_dir());
        let parent = parent.map_or_else(std::env::temp_dir, PathBuf::from);
        let path = parent.join(format!("farbank-lane-{}", std::process::id()));
        fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Folder(path))
    }

    fn pool(&self) -> PathBuf {
        self.0.join("pool")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing depends on it, and the run's result is already known.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server on a free port; killed when this goes.
struct Server {
    child: Child,
    port: String,
}

impl Server {
    fn start(pool: &Path) -> Result<Server, String> {
        let mut command = farbank();
        command
            .args(["serve", "--port", "0", "--memcached-port", "off"])
            .args(["--size", "32mb", "--pool"])
            .arg(pool);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let child = child.map_err(|e| format!("the server does not start: {e}"))?;
        let mut server = Server {
            child,
            port: String::new(),
        };
        let stdout = server
            .child
            .stdout
            .take()
            .ok_or("the server has no output")?;
        for line in BufReader::new(stdout).lines().take(4) {
            let line = line.map_err(|e| e.to_string())?;
            println!("{line}");
            if let Some((_, addr)) = line.split_once("redis://") {
                server.port = addr.rsplit(':').next().unwrap_or_default().into();
            }
        }
        match server.port.is_empty() {
            true => Err("the server said no address".into()),
            false => Ok(server),
        }
    }

    fn cli(&self) -> Command {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.port]);
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is gone already, or it is told to go.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
