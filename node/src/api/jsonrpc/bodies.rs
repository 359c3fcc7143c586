//! [`Bodies`]: the places of bodies that are worked on, and how long a body may take, by what it asks for.

use super::{Asked, SENDING_SYNC, envelope::Request};
use crate::{api::listener::Weight, fair::Places, rpc::Lane};

/// Bodies worked on at a time, each with its answers so far, that ask for little. More wait. The bodies of one address let those of
/// others through.
const CHEAP_BODIES_MAX: usize = 32;
/// The same of bodies with costly calls, and of those whose only costly calls are searches: of sockets. As many run as there are
/// threads; a few more keep these busy. The rest waits here, and not before the calls over HTTP in the queue of the threads. Those
/// over HTTP have no such bound. Each has a place of the listener, and an endless one would make short ones wait here.
const SOCKET_COSTLY_BODIES_MAX: usize = 8;
const SOCKET_SEARCH_BODIES_MAX: usize = 8;
/// The same of bodies that wait for receipts: without a thread, and for so long that others would wait for them.
const WAITING_BODIES_MAX: usize = 64;
/// Requests in an array that still counts as cheap: many cheap calls take as long as a costly one.
pub(super) const CHEAP_REQUESTS_MAX: usize = 32;

/// The lane of a request; what is none is refused at once.
pub(super) fn lane_of(request: &Request<'_>) -> Lane {
    request.call().map_or(Lane::Reads, |call| Lane::of_call(&call.method, call.params))
}

/// The places of bodies, by what they ask for.
pub(super) struct Bodies {
    /// `None` if there are as many as come.
    pub(super) costly: Option<Places>,
    searching: Option<Places>,
    cheap: Places,
    waiting: Places,
}

impl Bodies {
    /// Of HTTP.
    pub(super) fn over_http() -> Bodies {
        Bodies::new(None, None)
    }

    /// Of sockets.
    pub(super) fn over_sockets() -> Bodies {
        Bodies::new(Some(SOCKET_COSTLY_BODIES_MAX), Some(SOCKET_SEARCH_BODIES_MAX))
    }

    fn new(costly: Option<usize>, searching: Option<usize>) -> Bodies {
        Bodies {
            costly: costly.map(Places::new),
            searching: searching.map(Places::new),
            cheap: Places::new(CHEAP_BODIES_MAX),
            waiting: Places::new(WAITING_BODIES_MAX),
        }
    }

    /// The places for a body, if such bodies have a bound, and how long they may take.
    pub(super) fn places_for(&self, asked: &Asked<'_>) -> (Option<&Places>, Weight) {
        let requests = asked.requests();
        let waits = |request: &Request<'_>| request.call().is_some_and(|call| call.method == SENDING_SYNC);
        if requests.iter().any(waits) {
            (Some(&self.waiting), Weight::Waits)
        } else if requests.iter().any(|request| matches!(lane_of(request), Lane::Calls | Lane::Traces)) {
            (self.costly.as_ref(), Weight::Long)
        } else if requests.iter().any(|request| lane_of(request) == Lane::Searches) {
            (self.searching.as_ref(), Weight::Long)
        } else if requests.len() > CHEAP_REQUESTS_MAX {
            (self.costly.as_ref(), Weight::Long)
        } else {
            (Some(&self.cheap), Weight::Short)
        }
    }
}
