//! Suite `redis-clients`: runs redis-cli, redis-benchmark and redis-py against a real server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::RunSize;
use crate::run::{farbank, install, output, root, succeed, works};
use crate::serving::Serving;

/// Debian's Python, for which its package of redis-py is installed.
const PYTHON: &str = "/usr/bin/python3";

pub(crate) fn run(_size: RunSize) -> Result<(), String> {
    packages()?;
    let folder = ClientsFolder::new()?;
    let server = serve(&folder.pool())?;
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

/// Checks that the output of redis-cli for `session.txt` equals `session.expected`.
fn scripted_session(server: &Serving) -> Result<(), String> {
    let script = fs::File::open(file("session.txt")).map_err(|e| e.to_string())?;
    let printed = output(cli(server).arg("--no-raw").stdin(script))?;
    let expected = fs::read_to_string(file("session.expected")).map_err(|e| e.to_string())?;
    for (number, (found, line)) in printed.lines().zip(expected.lines()).enumerate() {
        if found != line {
            let number = number + 1;
            return Err(format!(
                "redis-cli printed {found:?} in line {number}, expected {line:?}"
            ));
        }
    }
    match printed == expected {
        true => Ok(()),
        false => Err("redis-cli printed more or fewer lines than expected".into()),
    }
}

fn python(server: &Serving) -> Result<(), String> {
    succeed(
        Command::new(PYTHON)
            .arg(file("clients.py"))
            .arg(&server.port),
    )
}

fn benchmark(server: &Serving) -> Result<(), String> {
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &server.port, "-t", "set,get,incr,mset"]);
    let text = output(command.args(["-n", "20000", "-P", "16", "-q"]))?;
    let results = text.matches("requests per second").count();
    match results == 4 && !text.contains("rror") {
        true => Ok(()),
        false => Err(format!(
            "redis-benchmark gave {results} results, expected 4 and no error"
        )),
    }
}

/// Checks that acknowledged writes survive SIGKILL.
fn kill_and_compare(server: Serving, folder: &ClientsFolder) -> Result<(), String> {
    let ask = |server: &Serving| -> Result<String, String> {
        let size = output(cli(server).arg("dbsize").stdin(Stdio::null()))?;
        Ok(size + &output(cli(server).args(["get", "durable"]).stdin(Stdio::null()))?)
    };
    output(
        cli(&server)
            .args(["set", "durable", "yes"])
            .stdin(Stdio::null()),
    )?;
    let before = ask(&server)?;
    drop(server);
    let after = ask(&serve(&folder.pool())?)?;
    match before == after {
        true => Ok(()),
        false => Err(format!("before the kill {before:?}, after it {after:?}")),
    }
}

fn file(name: &str) -> PathBuf {
    root().join("xtask/clients").join(name)
}

/// A folder in memory. Dropping this value removes it.
struct ClientsFolder(PathBuf);

impl ClientsFolder {
    fn new() -> Result<ClientsFolder, String> {
        let parent = Some(Path::new("/dev/shm")).filter(|shm| shm.is_dir());
        let parent = parent.map_or_else(std::env::temp_dir, PathBuf::from);
        let path = parent.join(format!("farbank-suite-{}", std::process::id()));
        fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(ClientsFolder(path))
    }

    fn pool(&self) -> PathBuf {
        self.0.join("pool")
    }
}

impl Drop for ClientsFolder {
    fn drop(&mut self) {
        // A folder that stays does no harm, and the result is already known.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts a server on the pool at `pool`.
fn serve(pool: &Path) -> Result<Serving, String> {
    let mut command = farbank();
    command
        .args(["serve", "--port", "0", "--memcached-port", "off"])
        .args(["--size", "32mb", "--pool"])
        .arg(pool);
    Serving::start(&mut command, "redis://")
}

/// Returns a command that runs redis-cli on the server's port.
fn cli(server: &Serving) -> Command {
    let mut command = Command::new("redis-cli");
    command.args(["-p", &server.port]);
    command
}
