//! A client of gRPC: one connection of HTTP/2. A test can also send its frames itself.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use prost::Message;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// No answer of a test takes as long.
const LIMIT: Duration = Duration::from_secs(100);

/// A connection.
pub struct GrpcClient {
    runtime: Runtime,
    sender: SendRequest<Bytes>,
    /// Headers of every call.
    pub headers: Vec<(&'static str, String)>,
}

/// The answer to a call.
#[derive(Debug)]
pub struct GrpcAnswer {
    /// The number of the status of gRPC; `None` for an answer without one.
    pub status: Option<u32>,
    pub message: String,
    /// The messages, without their prefixes.
    pub messages: Vec<Bytes>,
    pub headers: HeaderMap,
    pub http: u16,
}

/// A call with an unfinished request.
pub struct OpenCall<'c> {
    client: &'c GrpcClient,
    sender: SendStream<Bytes>,
    response: Option<ResponseFuture>,
    body: Option<RecvStream>,
    received: BytesMut,
}

impl GrpcClient {
    /// Connects over TCP.
    pub fn connect(address: SocketAddr) -> Self {
        Self::with(address, |builder| builder.initial_window_size(1 << 20))
    }

    /// Connects with other settings of HTTP/2.
    pub fn with(address: SocketAddr, change: impl Fn(&mut h2::client::Builder) -> &mut h2::client::Builder) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut builder = h2::client::Builder::new();
        change(&mut builder);
        let (sender, connection) = runtime.block_on(async {
            let stream = TcpStream::connect(address).await.unwrap();
            builder.handshake(stream).await.unwrap()
        });
        // Reads and writes frames while this lives.
        let _driver = runtime.spawn(async move {
            let _ = connection.await;
        });
        Self { runtime, sender, headers: Vec::new() }
    }

    /// Sets the API key of every call.
    pub fn key(mut self, key: &str) -> Self {
        self.headers.push(("authorization", format!("Bearer {key}")));
        self
    }

    /// Calls a method with one message.
    pub fn call(&self, path: &str, message: &impl Message) -> GrpcAnswer {
        self.try_call(path, &message.encode_to_vec()).unwrap()
    }

    /// Calls a method with the bytes of one message; an error of the connection or stream is `Err`.
    pub fn try_call(&self, path: &str, message: &[u8]) -> Result<GrpcAnswer, h2::Error> {
        let mut call = self.open(path)?;
        // An answer may come before all of the message is sent.
        let _ = call.send_framed(framed(message), true);
        call.finish()
    }

    /// Opens a call without a message.
    pub fn open(&self, path: &str) -> Result<OpenCall<'_>, h2::Error> {
        let mut request = Request::post(format!("http://localhost{path}")).header("content-type", "application/grpc");
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        self.send(request.body(()).unwrap())
    }

    /// Opens a call with another head.
    pub fn send(&self, request: Request<()>) -> Result<OpenCall<'_>, h2::Error> {
        let opened = self.runtime.block_on(async {
            let mut ready = tokio::time::timeout(LIMIT, self.sender.clone().ready()).await.unwrap()?;
            ready.send_request(request, false)
        });
        let (response, sender) = opened?;
        Ok(OpenCall { client: self, sender, response: Some(response), body: None, received: BytesMut::new() })
    }
}

/// A message behind its prefix.
pub fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), message].concat().into()
}

impl OpenCall<'_> {
    /// Sends bytes as they are.
    pub fn send_framed(&mut self, bytes: Bytes, ends: bool) -> Result<(), h2::Error> {
        self.client.runtime.block_on(async {
            let mut left = bytes;
            self.sender.reserve_capacity(left.len());
            while !left.is_empty() {
                let capacity = poll_fn(|context| self.sender.poll_capacity(context));
                match tokio::time::timeout(LIMIT, capacity).await.unwrap() {
                    Some(Ok(count)) => self.sender.send_data(left.split_to(count.min(left.len())), false)?,
                    Some(Err(error)) => return Err(error),
                    // The other side needs no more of it.
                    None => return Ok(()),
                }
            }
            if ends { self.sender.send_data(Bytes::new(), true) } else { Ok(()) }
        })
    }

    /// Resets the stream.
    pub fn reset(mut self) {
        self.client.runtime.block_on(async { self.sender.send_reset(h2::Reason::CANCEL) });
    }

    /// Waits for the head of the answer.
    pub fn head(&mut self) -> Result<(u16, HeaderMap), h2::Error> {
        let response = self.response.take().unwrap();
        let answer = self.client.runtime.block_on(async { tokio::time::timeout(LIMIT, response).await.unwrap() })?;
        let (parts, body) = answer.into_parts();
        self.body = Some(body);
        Ok((parts.status.as_u16(), parts.headers))
    }

    /// Waits for the next message; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Bytes>, h2::Error> {
        if self.body.is_none() {
            self.head()?;
        }
        let body = self.body.as_mut().unwrap();
        self.client.runtime.block_on(async {
            loop {
                if let Some(length) = self.received.get(1..5) {
                    let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
                    if self.received.len() >= 5 + length {
                        return Ok(Some(self.received.split_to(5 + length).freeze().slice(5..)));
                    }
                }
                match tokio::time::timeout(LIMIT, body.data()).await.unwrap() {
                    Some(data) => {
                        let data = data?;
                        body.flow_control().release_capacity(data.len())?;
                        self.received.extend_from_slice(&data);
                    }
                    None => return Ok(None),
                }
            }
        })
    }

    /// Waits for the whole answer.
    pub fn finish(mut self) -> Result<GrpcAnswer, h2::Error> {
        let (http, headers) = self.head()?;
        let mut messages = Vec::new();
        while let Some(message) = self.next()? {
            messages.push(message);
        }
        let body = self.body.as_mut().unwrap();
        let trailers = self.client.runtime.block_on(async { body.trailers().await })?;
        let told = trailers.as_ref().unwrap_or(&headers);
        let text = |name: &str| told.get(name).map(|value| value.to_str().unwrap().to_owned());
        Ok(GrpcAnswer {
            status: text("grpc-status").map(|status| status.parse().unwrap()),
            message: text("grpc-message").unwrap_or_default(),
            messages,
            headers,
            http,
        })
    }
}
