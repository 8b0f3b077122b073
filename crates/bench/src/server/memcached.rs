//! Load clients for memcached's text protocol, which check every reply.
//!
//! One thread drives all connections. In each turn it writes the requests of every connection with one write, then
//! reads each connection until all replies have arrived. The expected replies are known byte by byte and are compared.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use farbank_pm::rng::Rng;

use super::process::{MeasuredServer, TIMEOUT};
use super::{CLIENTS, KEYS, ServerOperation, VALUE_BYTES};
use crate::figure::Error;

/// Connections to one server.
pub(super) struct MemcachedClients {
    server: &'static str,
    streams: Vec<TcpStream>,
    rng: Rng,
    requests: Vec<u8>,
    /// Expected replies of each connection.
    answers: Vec<Vec<u8>>,
    found: Vec<u8>,
}

impl MemcachedClients {
    pub(super) fn of(server: &MeasuredServer) -> Result<MemcachedClients, Error> {
        MemcachedClients::at(server.name, server.port)
    }

    fn at(server: &'static str, port: u16) -> Result<MemcachedClients, Error> {
        let connect = |_| {
            let stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            Ok(stream)
        };
        let streams: Result<Vec<_>, _> = (0..CLIENTS).map(connect).collect();
        Ok(MemcachedClients {
            server,
            streams: streams.map_err(Error::doing(format!("connect to {server}")))?,
            rng: Rng::new(1),
            requests: Vec::new(),
            answers: vec![Vec::new(); CLIENTS as usize],
            found: Vec::new(),
        })
    }

    /// Stores every key.
    pub(super) fn load(&mut self, look: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
        let mut keys = 0..KEYS;
        let mut next = || keys.next().expect("there is a key for each request");
        self.send(ServerOperation::Set, 64, KEYS, |_| next(), look)
    }

    /// Sends `requests` requests for uniformly chosen keys, `pipeline` at a time on each connection. Returns requests
    /// per second.
    pub(super) fn drive(
        &mut self,
        operation: ServerOperation,
        pipeline: u64,
        requests: u64,
        look: impl FnMut() -> Result<(), Error>,
    ) -> Result<f64, Error> {
        let began = Instant::now();
        self.send(operation, pipeline, requests, |rng| rng.below(KEYS), look)?;
        Ok(requests as f64 / began.elapsed().as_secs_f64())
    }

    fn send(
        &mut self,
        operation: ServerOperation,
        pipeline: u64,
        requests: u64,
        mut key: impl FnMut(&mut Rng) -> u64,
        mut look: impl FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut left = requests;
        while left > 0 {
            look()?;
            for (stream, answers) in self.streams.iter_mut().zip(&mut self.answers) {
                let now = pipeline.min(left);
                left -= now;
                self.requests.clear();
                answers.clear();
                for _ in 0..now {
                    operation.request(key(&mut self.rng), &mut self.requests, answers);
                }
                let sent = stream.write_all(&self.requests);
                sent.map_err(Error::doing(format!("send {} requests", self.server)))?;
            }
            for (stream, answers) in self.streams.iter_mut().zip(&self.answers) {
                expect(stream, answers, &mut self.found, self.server)?;
            }
        }
        Ok(())
    }
}

impl ServerOperation {
    /// Appends a request for a key to `request`, and its expected reply to `answer`.
    fn request(self, key: u64, request: &mut Vec<u8>, answer: &mut Vec<u8>) {
        const VALUE: [u8; VALUE_BYTES] = [b'x'; VALUE_BYTES];
        let put = |to: &mut Vec<u8>, line: std::fmt::Arguments<'_>| {
            to.write_fmt(line).expect("writing to a Vec cannot fail");
        };
        match self {
            ServerOperation::Set => {
                put(
                    request,
                    format_args!("set key:{key:012} 0 0 {VALUE_BYTES}\r\n"),
                );
                request.extend_from_slice(&VALUE);
                request.extend_from_slice(b"\r\n");
                answer.extend_from_slice(b"STORED\r\n");
            }
            ServerOperation::Get => {
                put(request, format_args!("get key:{key:012}\r\n"));
                put(
                    answer,
                    format_args!("VALUE key:{key:012} 0 {VALUE_BYTES}\r\n"),
                );
                answer.extend_from_slice(&VALUE);
                answer.extend_from_slice(b"\r\nEND\r\n");
            }
        }
    }
}

/// Reads `answers.len()` bytes and compares them with `answers`.
fn expect(
    stream: &mut TcpStream,
    answers: &[u8],
    found: &mut Vec<u8>,
    server: &str,
) -> Result<(), Error> {
    found.resize(answers.len(), 0);
    let mut have = 0;
    while have < answers.len() {
        let read = stream.read(&mut found[have..]);
        let read = read.map_err(Error::doing(format!("read the replies of {server}")))?;
        let came = found[have..have + read].iter().zip(&answers[have..]);
        let same = came.take_while(|(found, expected)| found == expected);
        let same = same.count();
        if read == 0 || same < read {
            let text = |bytes: &[u8]| {
                let some = &bytes[..bytes.len().min(64)];
                String::from_utf8_lossy(some).escape_debug().to_string()
            };
            return Err(Error::Failed(format!(
                "{server} answered {:?}, expected {:?}",
                text(&found[have + same..have + read]),
                text(&answers[have + same..])
            )));
        }
        have += read;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Starts a fake server that claims to have every key. It answers request number `wrong` incorrectly. The thread
    /// returns the number of requests.
    fn answering(wrong: Option<u64>) -> (u16, thread::JoinHandle<u64>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let each = move |stream: TcpStream| {
            let mut out = stream.try_clone().unwrap();
            let (mut lines, mut asked) = (BufReader::new(stream).lines(), 0);
            while let Some(Ok(line)) = lines.next() {
                let answer = match line.split(' ').collect::<Vec<_>>()[..] {
                    _ if wrong == Some(asked) => "END\r\n".to_owned(),
                    ["set", ..] => {
                        lines.next();
                        "STORED\r\n".to_owned()
                    }
                    [_, key] => format!(
                        "VALUE {key} 0 {VALUE_BYTES}\r\n{}\r\nEND\r\n",
                        "x".repeat(VALUE_BYTES)
                    ),
                    _ => panic!("{line}"),
                };
                asked += 1;
                if out.write_all(answer.as_bytes()).is_err() {
                    break; // the client has closed the connection
                }
            }
            asked
        };
        let server = thread::spawn(move || {
            let streams = (0..CLIENTS).map(|_| listener.accept().unwrap().0);
            let served: Vec<_> = streams.map(|s| thread::spawn(move || each(s))).collect();
            served.into_iter().map(|s| s.join().unwrap()).sum()
        });
        (port, server)
    }

    #[test]
    fn the_requested_number_of_requests_is_sent() {
        for operation in [ServerOperation::Set, ServerOperation::Get] {
            let (port, server) = answering(None);
            let mut clients = MemcachedClients::at("test", port).unwrap();
            clients.drive(operation, 7, 1_234, || Ok(())).unwrap();
            drop(clients);
            assert_eq!(server.join().unwrap(), 1_234);
        }
    }

    #[test]
    fn a_wrong_reply_is_reported() {
        let (port, server) = answering(Some(5));
        let mut clients = MemcachedClients::at("test", port).unwrap();
        let told = clients.drive(ServerOperation::Get, 10, 1_000, || Ok(()));
        let told = told.unwrap_err().to_string();
        assert!(told.contains(r#"test answered "END"#), "{told}");
        drop(clients);
        server.join().unwrap();
    }
}
