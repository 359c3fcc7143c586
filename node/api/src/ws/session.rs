//! [`Session`]: one socket, from its upgrade to its end. One task reads it, answers its requests, sends it news, and
//! writes.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use axum::body::Bytes;
use futures::{
    SinkExt, StreamExt,
    stream::{FuturesUnordered, SplitStream},
};
use slipstream_fair::QuotaShare;
use slipstream_rpc::{
    Caller, CostlyTurn, Lane, NewsSignal, NewsStep, Notice, SubscriberSocket, SubscriptionError,
    Subscriptions,
};
use tokio::{
    runtime::Handle,
    task::JoinError,
    time::{Instant, MissedTickBehavior, interval_at, sleep, timeout},
};
use tokio_tungstenite::tungstenite::{Error as WebSocketError, Message};
use tokio_util::task::AbortOnDropHandle;

use super::{end::SessionEnd, handshake::Socket, outbox::Outbox, places::SocketPlace};
use crate::{Api, listener::Seat};

/// Maximum number of messages of one socket that run at once; further messages wait in the kernel. A message that waits
/// for a receipt delays few others.
const CALLS_MAX: usize = 8;
/// How often a waiting call checks for a free place.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How often a client is pinged, and how long it may be silent. Proxies forget a connection after a minute.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(15);
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(45);
/// Pings and pongs that a client may send: at once, and for each second after that.
const CONTROLS_MAX: u32 = 32;
const CONTROLS_PER_SECOND: f64 = 2.0;
/// How long a client has to receive the reason why its socket is closed.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

/// A socket's session, as the module describes.
pub(super) struct Session {
    api: Arc<Api>,
    seat: Seat,
    place: SocketPlace,
    subscriptions: Arc<Subscriptions>,
    outbox: Outbox,
    /// HTTP's runtime, which answers the requests. Threads inherit the priority of the thread that starts them, so
    /// threads started here would have the low priority of the sockets' thread.
    http: Handle,
}

/// A received message, and its memory share until it is answered.
struct ReceivedMessage {
    text: Bytes,
    _room: Option<QuotaShare>,
}

/// The answer to a message.
struct Answered {
    body: u64,
    text: Option<Bytes>,
    turn: CostlyTurn,
}

/// The work in progress.
struct Work {
    calls: FuturesUnordered<AbortOnDropHandle<Answered>>,
    /// A message without a place yet.
    waiting: Option<ReceivedMessage>,
    /// The news that another thread builds.
    news: Option<AbortOnDropHandle<Result<NewsStep, SubscriptionError>>>,
    /// Whether there may be news.
    is_due: bool,
    bodies: u64,
    /// The turn of the costly body that was answered last: the next one gets its turn once the answer is read.
    turn: Option<CostlyTurn>,
    controls: Controls,
    heard: Instant,
}

impl Session {
    /// Creates the session. Call on HTTP's runtime.
    pub(super) fn new(api: Arc<Api>, seat: Seat, place: SocketPlace) -> Session {
        let (subscriptions, outbox) = (place.sockets.subscriptions(seat.origin()), Outbox::default());
        Session { api, seat, place, subscriptions, outbox, http: Handle::current() }
    }

    /// Serves the socket to its end.
    pub(super) async fn run(self, socket: Socket) {
        self.seat.upgraded(self.api.incoming.messages(self.seat.origin()));
        let (mut sink, mut stream) = socket.split();
        let end = {
            let writing = pin!(self.outbox.write(&mut sink));
            self.serve(&mut stream, writing).await
        };
        tracing::debug!(reason = %end, "a WebSocket was closed");
        self.place.sockets.metrics.ws_closed.with_label_values(&[end.name()]).inc();
        let farewell = async {
            let said = match end.frame() {
                Some(frame) => sink.send(Message::Close(Some(frame))).await,
                // Flushes the reply to the client's close frame.
                None => sink.flush().await,
            };
            if said.is_ok() {
                // Closing with unread data would reset the connection and lose the close frame.
                while let Some(Ok(_)) = stream.next().await {}
            }
        };
        let _ = timeout(FAREWELL_MAX, farewell).await;
    }

    async fn serve(
        &self,
        stream: &mut SplitStream<Socket>,
        mut writing: Pin<&mut impl Future<Output = WebSocketError>>,
    ) -> SessionEnd {
        let mut news = self.subscriptions.news();
        // The client has just spoken, so an immediate ping would be useless.
        let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut work = Work {
            calls: FuturesUnordered::new(),
            waiting: None,
            news: None,
            is_due: false,
            bodies: 0,
            turn: None,
            controls: Controls::new(Instant::now()),
            heard: Instant::now(),
        };
        loop {
            if work.waiting.is_some() {
                self.call(&mut work);
            }
            if let Err(lost) = self.step(&mut work) {
                return lost.into();
            }
            if self.outbox.takes_answers() {
                work.turn = None;
            }
            let may_read =
                work.waiting.is_none() && work.calls.len() < CALLS_MAX && self.outbox.takes_answers();
            if !may_read {
                // While the node is not reading, the client's silence does not count.
                work.heard = Instant::now();
            }
            let ended = tokio::select! {
                () = self.place.sockets.closing().cancelled() => Some(SessionEnd::Shutdown),
                () = self.place.lost() => Some(SessionEnd::Displaced),
                _ = &mut writing => Some(SessionEnd::Gone),
                read = stream.next(), if may_read => self.read(read, &mut work),
                Some(answered) = work.calls.next(), if !work.calls.is_empty() => match answered {
                    Ok(answered) => {
                        self.answer(answered, &mut work);
                        None
                    }
                    // The task panicked, or the node is stopping.
                    Err(_) => Some(SessionEnd::Gone),
                },
                made = made(&mut work.news), if work.news.is_some() => self.made(made, &mut work),
                () = next(&mut news), if !self.subscriptions.is_empty() => {
                    work.is_due = true;
                    None
                }
                // There is room again: to read on, to send more news, or for a costly call.
                () = self.outbox.drained() => None,
                () = sleep(LOOK_INTERVAL), if work.waiting.is_some() => None,
                () = self.outbox.overdue() => Some(SessionEnd::Slow),
                _ = pings.tick() => {
                    self.outbox.ping();
                    (work.heard.elapsed() > SILENCE_MAX).then_some(SessionEnd::Silent)
                }
            };
            if let Some(end) = ended {
                return end;
            }
        }
    }

    /// Sends as much news as there is room for, and starts work on the rest.
    fn step(&self, work: &mut Work) -> Result<(), SubscriptionError> {
        while work.is_due && work.news.is_none() {
            let room = self.outbox.room();
            let NewsStep { notices, needs, is_full, .. } = self.subscriptions.step(room)?;
            self.tell(notices);
            match needs {
                Some(lane) if room > 0 => work.news = Some(self.made_in(lane, room)),
                _ => work.is_due = is_full,
            }
            if self.outbox.room() == 0 {
                break;
            }
        }
        Ok(())
    }

    fn made_in(&self, lane: Lane, room: usize) -> AbortOnDropHandle<Result<NewsStep, SubscriptionError>> {
        let (api, subscriptions) = (self.api.clone(), self.subscriptions.clone());
        let making = async move { api.jsonrpc.table().work_for(subscriptions, lane, room).await };
        AbortOnDropHandle::new(self.http.spawn(making))
    }

    fn made(
        &self,
        made: Result<Result<NewsStep, SubscriptionError>, JoinError>,
        work: &mut Work,
    ) -> Option<SessionEnd> {
        work.news = None;
        // The next check is cheap, whether or not there is more news.
        work.is_due = true;
        match made {
            Ok(Ok(step)) => {
                self.tell(step.notices);
                None
            }
            Ok(Err(lost)) => Some(lost.into()),
            Err(_) => Some(SessionEnd::Gone),
        }
    }

    fn tell(&self, notices: Vec<Notice>) {
        for notice in notices {
            // The subscription may have ended meanwhile.
            if self.subscriptions.has(notice.id) {
                self.outbox.push(notice.text().into());
            }
        }
    }

    /// Handles a message of the client.
    fn read(&self, read: Option<Result<Message, WebSocketError>>, work: &mut Work) -> Option<SessionEnd> {
        let message = match read {
            None => return Some(SessionEnd::Client),
            Some(Err(error)) => return Some(SessionEnd::of_error(&error)),
            Some(Ok(message)) => message,
        };
        work.heard = Instant::now();
        match message {
            // Copied, because a few bytes would keep the whole read buffer alive.
            Message::Text(text) => self.asked(Bytes::copy_from_slice(text.as_bytes()), work),
            Message::Binary(text) => self.asked(Bytes::copy_from_slice(&text), work),
            // The stream answers pings itself. A ping may arrive between the frames of a message.
            Message::Ping(payload) | Message::Pong(payload) => {
                self.seat.control_read(payload.len());
                return (!work.controls.take(Instant::now())).then_some(SessionEnd::Flood);
            }
            // Single frames are never delivered.
            Message::Close(_) | Message::Frame(_) => return Some(SessionEnd::Client),
        }
        None
    }

    /// Handles a complete request.
    fn asked(&self, text: Bytes, work: &mut Work) {
        work.waiting = Some(ReceivedMessage { text, _room: self.seat.message_read() });
        self.call(work);
    }

    /// Starts work on the waiting message, if a place is free.
    fn call(&self, work: &mut Work) {
        let Some(place) = self.seat.call_place() else { return };
        let Some(asked) = work.waiting.take() else { return };
        self.place.asks();
        work.bodies += 1;
        let body = work.bodies;
        let listening = SubscriberSocket::new(self.subscriptions.clone(), body);
        let turn = listening.turn();
        let caller = Caller { origin: self.seat.origin(), listening: Some(listening), probation: None };
        let api = self.api.clone();
        let answering = async move {
            let text = api.jsonrpc.handle(caller, || (), &asked.text).await;
            drop((place, asked));
            Answered { body, text, turn }
        };
        work.calls.push(AbortOnDropHandle::new(self.http.spawn(answering)));
    }

    /// Queues an answer; whatever the answer started may follow it.
    fn answer(&self, Answered { body, text, turn }: Answered, work: &mut Work) {
        if turn.get().is_some() {
            work.turn = Some(turn);
        }
        if let Some(text) = text {
            self.outbox.push(text);
        }
        self.subscriptions.activate(body);
        work.is_due |= !self.subscriptions.is_empty();
    }
}

async fn next(news: &mut NewsSignal) {
    news.changed().await;
}

/// The result of work on another thread; waits for ever if there is none.
async fn made(
    news: &mut Option<AbortOnDropHandle<Result<NewsStep, SubscriptionError>>>,
) -> Result<Result<NewsStep, SubscriptionError>, JoinError> {
    match news {
        Some(making) => making.await,
        None => std::future::pending().await,
    }
}

/// Rate limit on the control frames of a client.
struct Controls {
    left: f64,
    at: Instant,
}

impl Controls {
    fn new(now: Instant) -> Controls {
        Controls { left: CONTROLS_MAX.into(), at: now }
    }

    /// Counts one frame; false if that is too many.
    fn take(&mut self, now: Instant) -> bool {
        let more = now.saturating_duration_since(self.at).as_secs_f64() * CONTROLS_PER_SECOND;
        (self.left, self.at) = ((self.left + more).min(CONTROLS_MAX.into()) - 1.0, now);
        self.left >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pings_are_few() {
        let mut controls = Controls::new(Instant::now());
        assert_eq!((0..100).take_while(|_| controls.take(Instant::now())).count(), CONTROLS_MAX as usize);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert!((0..4).all(|_| controls.take(Instant::now())), "two a second come back, and one was owed");
    }
}
