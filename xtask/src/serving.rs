//! A server process under test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::run::succeed;

/// A server on a free port. Dropping this value kills it.
pub(crate) struct Serving {
    child: Child,
    pub(crate) port: String,
    /// Address of the memcached listener, if the banner names one.
    pub(crate) memcached_addr: Option<String>,
}

impl Serving {
    /// Runs `farbank serve` as `command` and waits for its banner, which contains `scheme` (`redis://`) followed by the address.
    pub(crate) fn start(command: &mut Command, scheme: &str) -> Result<Serving, String> {
        Serving::await_banner(command, scheme, 4)
    }

    /// Runs `command` and waits for its banner of `lines` lines, which contains `scheme` followed by the address.
    pub(crate) fn await_banner(
        command: &mut Command,
        scheme: &str,
        lines: usize,
    ) -> Result<Serving, String> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let child = child.map_err(|e| format!("the server does not start: {e}"))?;
        let mut server = Serving {
            child,
            port: String::new(),
            memcached_addr: None,
        };
        let stdout = server
            .child
            .stdout
            .take()
            .ok_or("the server has no output")?;
        for line in BufReader::new(stdout).lines().take(lines) {
            let line = line.map_err(|e| e.to_string())?;
            println!("{line}");
            let memcached = line.split_once("memcached://").map(|(_, rest)| rest);
            let end = |c: char| c != '.' && c != ':' && !c.is_ascii_digit();
            let addr = memcached.and_then(|rest| rest.split(end).next());
            if let Some(addr) = addr {
                server.memcached_addr = Some(addr.into());
            }
            if let Some((_, addr)) = line.split_once(scheme) {
                let addr = addr.split(end).next().unwrap_or_default();
                server.port = addr.rsplit(':').next().unwrap_or_default().into();
            }
        }
        match server.port.is_empty() {
            true => Err("the server's banner names no address".into()),
            false => Ok(server),
        }
    }
}

impl Serving {
    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM and waits until the server has closed its pool and ended.
    pub(crate) fn end(mut self) -> Result<(), String> {
        let id = self.child.id().to_string();
        succeed(Command::new("kill").args(["-TERM", &id]))?;
        let status = self.child.wait().map_err(|e| e.to_string())?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the server ended with {status}")),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Fails only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
