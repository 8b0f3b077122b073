//! Hosts on one machine: network namespaces that a bridge connects, and that can be cut off.
//!
//! ```text
//!   namespace of host 1: eth0 10.77.0.1 ─── port1 ┐
//!   namespace of host 2: eth0 10.77.0.2 ─── port2 ┼─ a bridge, in a namespace of its own
//!                                 cut:  ─── port3 ⌁
//! ```
//!
//! The bridge has no port of the machine itself, so the addresses cannot collide with others. A host that is cut off keeps its
//! link: what it sends is lost, and nothing arrives, as behind a switch that has failed.
//!
//! # Invariants
//! NET-1  The namespaces have no names. Each exists while a process is in it: a process that waits for the end of a pipe from
//!     the process with the [`Network`], and the processes of [`Host::command`], which the kernel kills with the thread that has
//!     started them. So nothing is left at the end, also after SIGKILL.
//!
//! Needs root, and the programs `ip` of iproute2 and `unshare`, `nsenter` and `setpriv` of util-linux.

use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Ipv4Addr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Reason why a network of namespaces could not be created or changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetworkError {
    /// The program that failed, with its arguments.
    command: String,
    /// What it printed.
    output: String,
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot use network namespaces, which need root, iproute2 and a kernel with bridges: {}: {}",
            self.command,
            self.output.trim_end()
        )
    }
}

impl std::error::Error for NetworkError {}

impl NetworkError {
    fn new(command: &Command, output: impl ToString) -> NetworkError {
        let words = [command.get_program()].into_iter();
        let words: Vec<_> = words
            .chain(command.get_args())
            .map(OsStr::to_string_lossy)
            .collect();
        NetworkError {
            command: words.join(" "),
            output: output.to_string(),
        }
    }
}

/// A network namespace. Its drop ends it, unless a process of it remains.
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new() -> Result<Namespace, NetworkError> {
        let mut command = Command::new("unshare");
        command
            .args(["--net", "sh", "-c"])
            .arg("ip link set dev lo up && echo && exec cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let spawned = command.spawn();
        let holder = spawned.map_err(|error| NetworkError::new(&command, error))?;
        let mut namespace = Namespace { holder };
        let (stdout, stderr) = (&mut namespace.holder.stdout, &mut namespace.holder.stderr);
        let (stdout, stderr) = stdout.as_mut().zip(stderr.as_mut()).expect("piped above");
        let mut ready = String::new();
        let read = BufReader::new(stdout).read_line(&mut ready);
        match read {
            Ok(bytes) if bytes > 0 => Ok(namespace),
            _ => {
                let mut output = String::new();
                // The output is only shown.
                let _ = stderr.read_to_string(&mut output);
                Err(NetworkError::new(&command, output))
            }
        }
    }

    /// Returns the command that runs `program` here. Its process id is the program's.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.holder.id()))
            .args(["setpriv", "--pdeathsig", "KILL"])
            .arg(program);
        command
    }

    /// Runs `ip` with these arguments, which are separated by spaces.
    fn ip(&self, arguments: &str) -> Result<(), NetworkError> {
        let mut command = self.command("ip");
        command.args(arguments.split(' ')).stdin(Stdio::null());
        let output = command.output();
        let output = output.map_err(|error| NetworkError::new(&command, error))?;
        match output.status.success() {
            true => Ok(()),
            false => {
                let text = String::from_utf8_lossy(&output.stderr);
                Err(NetworkError::new(&command, text))
            }
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        self.holder.kill().ok();
        self.holder.wait().ok();
    }
}

/// A process that changes links without delay: `ip` with commands from a pipe. It ends with its namespace or the pipe.
struct LinkChanger {
    command: Command,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl LinkChanger {
    fn new(namespace: &Namespace) -> Result<LinkChanger, NetworkError> {
        let mut command = namespace.command("ip");
        command
            .args(["-oneline", "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let spawned = command.spawn();
        let mut child = spawned.map_err(|error| NetworkError::new(&command, error))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Ok(LinkChanger {
            command,
            child,
            stdin: stdin.expect("stdin is piped"),
            stdout: BufReader::new(stdout.expect("stdout is piped")),
        })
    }

    /// Changes link `name`, and waits until that has happened.
    fn set(&mut self, name: &str, change: &str) -> Result<(), NetworkError> {
        let mut shown = String::new();
        let set = format!("link set dev {name} {change}\nlink show dev {name}\n");
        let written = self.stdin.write_all(set.as_bytes());
        let read = written.and_then(|()| self.stdout.read_line(&mut shown));
        match read {
            Ok(bytes) if bytes > 0 => Ok(()),
            _ => {
                let mut output = String::new();
                // The output is only shown.
                let stderr = self.child.stderr.as_mut();
                let _ = stderr.map(|stderr| stderr.read_to_string(&mut output));
                Err(NetworkError::new(&self.command, output))
            }
        }
    }
}

impl Drop for LinkChanger {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Hosts and the bridge between them.
pub struct Network {
    bridge: Namespace,
    links: LinkChanger,
    hosts: u8,
}

impl Network {
    /// Creates a network without hosts.
    ///
    /// # Errors
    /// The kernel or the user may not create network namespaces or bridges, or a program is missing.
    pub fn new() -> Result<Network, NetworkError> {
        let bridge = Namespace::new()?;
        bridge.ip("link add name bridge type bridge")?;
        bridge.ip("link set dev bridge up")?;
        let links = LinkChanger::new(&bridge)?;
        Ok(Network {
            bridge,
            links,
            hosts: 0,
        })
    }

    /// Adds a host.
    ///
    /// # Errors
    /// A link cannot be created.
    ///
    /// # Panics
    /// If the network has 254 hosts.
    pub fn add_host(&mut self) -> Result<Host, NetworkError> {
        assert!(self.hosts < 254, "the network has no more addresses");
        self.hosts += 1;
        let host = Host {
            namespace: Namespace::new()?,
            address: Ipv4Addr::new(10, 77, 0, self.hosts),
            port: format!("port{}", self.hosts),
        };
        let (port, holder) = (&host.port, host.namespace.holder.id());
        self.bridge.ip(&format!(
            "link add name {port} type veth peer name eth0 netns {holder}"
        ))?;
        self.bridge.ip(&format!("link set dev {port} up"))?;
        let address = host.address;
        host.namespace
            .ip(&format!("address add {address}/24 dev eth0"))?;
        host.namespace.ip("link set dev eth0 up")?;
        self.join(&host)?;
        Ok(host)
    }

    /// Cuts a host off from all others.
    ///
    /// # Errors
    /// The bridge cannot be changed.
    pub fn cut(&mut self, host: &Host) -> Result<(), NetworkError> {
        self.links.set(&host.port, "nomaster")
    }

    /// Connects a host to the others again.
    ///
    /// # Errors
    /// The bridge cannot be changed.
    pub fn join(&mut self, host: &Host) -> Result<(), NetworkError> {
        self.links.set(&host.port, "master bridge")
    }
}

/// A host of a [`Network`].
pub struct Host {
    namespace: Namespace,
    address: Ipv4Addr,
    port: String,
}

impl Host {
    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns the command that runs `program` on it. Its process id is the program's. The kernel kills the process when the
    /// thread that has started it ends (NET-1).
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.namespace.command(program)
    }
}
