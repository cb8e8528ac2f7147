//! The connection to the broker: made, kept, and made again. One task owns it, the session and everything under way.
//!
//! It never waits for an inference: those run in tasks of their own and report back.

use std::convert::Infallible;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::backoff::{Backoff, random};
use ledge_base::telemetry::messages::MessageStatistics;
use ledge_egress::{Content, Egress};
use ledge_identity::authentication::Authenticator;
use ledge_models::serving::Serving;
use ledge_service::shutdown::Shutdown;
use ledge_updates::Updates;
use tokio::sync::watch;

use super::bindings::Bindings;
use super::client::connection::{Connection, ConnectionError, Reader, Writer};
use super::client::packet::{Incoming, Message, Properties, Qos};
use super::config::MqttConfig;
use super::desk::{Desk, Parts};
use super::dial::{self, Failed, OFFLINE, ONLINE, presence};
use super::pulse::{Beat, Moved, Pulse};
use super::request::HEAD;
use super::topics::DeviceTopics;

/// No more packets are put into the writer while so many bytes are not sent.
const QUEUED: usize = 256 << 10;

/// So many packets are taken before others have a turn: callers over HTTP wait on the same thread.
const AT_ONCE: usize = 32;

/// After what time without anything to send the broker learns at the level of TCP that its packets came: until then it may
/// hold back the next ones. At once would cost a system call for each packet where answers are quick.
const PROMPT: Duration = Duration::from_millis(1);

/// The first pause between attempts to connect is at most this.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// A connection that stood so long was a good one: the next pause is short.
const GOOD: Duration = Duration::from_secs(10);

/// After what time a refused subscription is asked for again: somebody may have changed the broker's access list.
const RESUBSCRIBE: Duration = Duration::from_mins(1);

/// After nothing more can be sent, what the broker said before that is waited for so long. It is here already, as a rule.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// What MQTT is built from.
#[derive(Debug)]
pub struct Gateway {
    /// The section `[mqtt]`.
    pub config: MqttConfig,
    /// The topics of this box.
    pub topics: DeviceTopics,
    pub egress: Egress,
    pub serving: Serving,
    pub authenticator: Authenticator,
    pub statistics: MessageStatistics,
    /// What this box reports of itself; nothing as long as it is empty.
    pub reported: watch::Receiver<Bytes>,
    /// Who wants to know that the platform has something new; `None` where none looks after this box.
    pub updates: Option<Updates>,
}

/// How far the end of a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// What is under way is brought to its end.
    Draining,
    /// The last message is on its way.
    Leaving,
}

impl Gateway {
    /// Answers messages until the shutdown is requested and what is under way has ended.
    pub async fn run(mut self, shutdown: Shutdown) -> Result<(), Infallible> {
        let Some(broker) = self.config.broker.clone() else { return Ok(()) };
        let bindings = Bindings::new(&self.config.bindings);
        let parts = Parts {
            serving: self.serving.clone(),
            authenticator: self.authenticator.clone(),
            statistics: self.statistics.clone(),
            updates: self.updates.clone(),
            shutdown: shutdown.clone(),
        };
        let mut desk = Desk::new(self.topics.clone(), &bindings, &self.config, parts);
        let mut backoff = Backoff::new(FIRST_PAUSE, self.config.reconnect_max());
        let mut told = String::new();
        loop {
            let connected = tokio::select! {
                connected = meanwhile(&mut desk, self.connect()) => connected,
                () = shutdown.requested() => return Ok(()),
            };
            let began = Instant::now();
            let ended = match connected {
                Ok(connection) => {
                    let (version, session_present) = (connection.version, connection.accepted.session_present);
                    tracing::info!(%broker, %version, session_present, "connected to the broker");
                    told.clear();
                    self.statistics.connected();
                    let ended = self.exchange(connection, &mut desk, &shutdown).await;
                    self.statistics.disconnected();
                    desk.disconnected();
                    ended.map_err(Failed::from)
                }
                Err(failed) => Err(failed),
            };
            let Err(failed) = ended else { return Ok(()) };
            if began.elapsed() >= GOOD {
                backoff.reset();
            }
            if failed.is_takeover() {
                // Two boxes of one name would otherwise throw each other out for ever.
                backoff.give_way();
            }
            let pause = backoff.pause(random());
            let reason = failed.to_string();
            let retry_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
            // Once: a broker that is away for a night is no news.
            if told == reason {
                tracing::debug!(%broker, reason, retry_in_ms, "the broker is not connected");
            } else {
                tracing::warn!(%broker, reason, retry_in_ms, "the broker is not connected");
                told = reason;
            }
            tokio::select! {
                () = meanwhile(&mut desk, tokio::time::sleep(pause)) => {}
                () = shutdown.requested() => return Ok(()),
            }
        }
    }

    async fn connect(&self) -> Result<Connection, Failed> {
        let connect = dial::connect(&self.config, &self.topics)?;
        Ok(dial::open(&self.egress, &self.config, connect).await?)
    }

    /// Exchanges packets until the connection breaks, or in the end is closed.
    async fn exchange(
        &mut self,
        connection: Connection,
        desk: &mut Desk,
        shutdown: &Shutdown,
    ) -> Result<(), ConnectionError> {
        let Connection { mut reader, mut writer, accepted, .. } = connection;
        let keep_alive = accepted.server_keep_alive_s.unwrap_or(self.config.keep_alive_s);
        let mut pulse = Pulse::new(Duration::from_secs(keep_alive.into()), Instant::now());
        desk.connected(&accepted, Instant::now());
        desk.publish(presence(self.topics.online(), ONLINE), Content::Presence);
        self.report(desk);
        let mut resubscribe = Instant::now() + RESUBSCRIBE.min(self.config.reconnect_max());
        let mut phase = Phase::Open;
        let (mut reporting, mut unacknowledged) = (true, None);
        loop {
            phase = self.advance(phase, desk, shutdown);
            send(&mut writer, desk)?;
            if phase == Phase::Leaving && desk.is_idle() && writer.queued() == 0 {
                return dial::farewell(writer).await;
            }
            let now = Instant::now();
            desk.start_due(now);
            if desk.lacks_subscription() && now >= resubscribe {
                resubscribe = now + RESUBSCRIBE.min(self.config.reconnect_max());
                desk.subscribe_again();
                continue;
            }
            if !desk.may_read() {
                pulse.deaf(now);
            }
            match pulse.beat(Moved { received: reader.received(), sent: writer.sent() }, now) {
                Beat::Rest => {}
                Beat::Dead => return Err(ConnectionError::Silent),
                Beat::Ask => {
                    desk.ping();
                    continue;
                }
            }
            if unacknowledged.is_some_and(|since| now >= since + PROMPT) {
                reader.acknowledge();
                unacknowledged = None;
            }
            let prompt = unacknowledged.map(|since| since + PROMPT);
            let wake = [desk.next_due(), desk.lacks_subscription().then_some(resubscribe), prompt];
            let wake = wake.into_iter().flatten().fold(pulse.next(), Instant::min);
            desk.note();
            reader.set_max_packet(self.room(desk));
            tokio::select! {
                // What leaves goes before what comes: an answer makes room, a request takes it.
                biased;
                () = shutdown.requested(), if phase == Phase::Open => {}
                sent = writer.flush(), if writer.queued() > 0 => {
                    if let Err(broke) = sent {
                        return Err(last_words(&mut reader).await.unwrap_or(broke));
                    }
                    // What was sent acknowledges what came as well.
                    unacknowledged = None;
                }
                finished = desk.finished() => desk.finish(finished, Instant::now()),
                changed = self.reported.changed(), if reporting => {
                    reporting = changed.is_ok();
                    self.report(desk);
                }
                packet = reader.next(), if desk.may_read() => {
                    unacknowledged.get_or_insert_with(Instant::now);
                    self.take(packet?, &mut reader, desk)?;
                    // What was begun has its turn before more is read.
                    give_way().await;
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    /// Takes a packet, and some of those that came with it.
    fn take(&self, mut packet: Incoming, reader: &mut Reader, desk: &mut Desk) -> Result<(), ConnectionError> {
        let now = Instant::now();
        let ended = |(reason, text)| ConnectionError::Disconnected { reason, text };
        for _ in 1..AT_ONCE {
            desk.receive(packet, now).map_err(ended)?;
            reader.set_max_packet(self.room(desk));
            match reader.next_here()? {
                Some(next) => packet = next,
                None => return Ok(()),
            }
        }
        desk.receive(packet, now).map_err(ended)
    }

    /// How large a packet may be now, in bytes, that is not let go by.
    fn room(&self, desk: &Desk) -> usize {
        desk.room().min(self.config.max_payload_bytes.saturating_add(HEAD))
    }

    /// The phase now, and what has to be done on the way to it.
    fn advance(&self, mut phase: Phase, desk: &mut Desk, shutdown: &Shutdown) -> Phase {
        if phase == Phase::Open && shutdown.is_requested() {
            desk.close();
            phase = Phase::Draining;
        }
        if phase == Phase::Draining && desk.is_idle() {
            desk.publish(presence(self.topics.online(), OFFLINE), Content::Presence);
            phase = Phase::Leaving;
        }
        phase
    }

    /// Publishes what this box reports of itself.
    fn report(&mut self, desk: &mut Desk) {
        let payload = self.reported.borrow_and_update().clone();
        if !payload.is_empty() {
            let properties = Properties { content_type: Some("application/json".to_owned()), ..Properties::default() };
            let topic = self.topics.reported();
            let message = Message { topic, payload, qos: Qos::AtLeastOnce, retain: true, properties };
            desk.publish(message, Content::Report);
        }
    }
}

/// Puts what the session wants to send into the writer, up to a measure.
fn send(writer: &mut Writer, desk: &mut Desk) -> Result<(), ConnectionError> {
    while writer.queued() < QUEUED {
        let Some((content, packet)) = desk.next_packet(|packet| writer.size(packet), Instant::now()) else { break };
        match writer.put(content, &packet) {
            Ok(()) => {}
            Err(ConnectionError::NotPermitted(reason)) => desk.not_permitted(packet, &reason, Instant::now()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Why the broker ended a connection that broke, if it said so. Whatever else came is left: what is of QoS 1 comes again.
async fn last_words(reader: &mut Reader) -> Option<ConnectionError> {
    let said = async {
        loop {
            match reader.next().await {
                Ok(Incoming::Disconnect { reason, text }) => {
                    return Some(ConnectionError::Disconnected { reason, text });
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    };
    tokio::time::timeout(LAST_WORDS, said).await.ok().flatten()
}

/// Waits for something, and takes what is dealt with meanwhile.
async fn meanwhile<T>(desk: &mut Desk, what: impl Future<Output = T>) -> T {
    let mut what = std::pin::pin!(what);
    loop {
        tokio::select! {
            result = &mut what => return result,
            finished = desk.finished() => desk.finish(finished, Instant::now()),
        }
    }
}

/// Lets the tasks that are ready have their turn. `yield_now` would ask the kernel for events before that, each time.
async fn give_way() {
    let mut given = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut given, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
