"""store ─► look ─► what differs ─► [live] ─► browsers and programs that watch

    sights ─► board ─► lookout ─► listeners ─► WebSocket | event stream | polling

sights     what one look at the store, the limiter and the ledger finds
board      how everything is, and since when: what a listener has not been told yet
lookout    looks while somebody listens, and wakes the listeners
listeners  how many there may be, and what each of them has been told
tickets    used once, in the place of a key that must not stand in an address
sessions   one listener's time with us: news, heartbeats, and the end

Nothing is written for it when a job changes. Events are states: each says how something is, so that whoever missed some
is told how it is now. The sequence number is the store's clock at the look: all processes that serve one store agree on
it, and who was cut off at one of them goes on at another.
"""
