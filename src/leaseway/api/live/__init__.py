"""store ─► poll ─► changes ─► [live] ─► browsers and programs that watch

    snapshot ─► change_log ─► poller ─► subscribers ─► delivery ─► WebSocket | server-sent events | long polling

snapshot     reads lanes, jobs, limits, budgets and imports once
change_log   the state of everything, and since which poll: what a subscriber has not received yet
poller       polls while there are subscribers, and wakes them; what each subscriber has received
hub          admits subscribers, within the limits of `LiveSettings`
delivery     sends frames to one subscriber, with heartbeats and a maximum lifetime, over each transport
credentials  tickets for WebSockets, and whether a subscriber's credential is still valid
routes       /v1/events, /v1/live, /v1/tickets
job_waits    requests that wait for jobs to finish, which share their reads
"""
