"""`python -m demo`: a crowd with real agents, on real vLLM servers: what a gateway changes, and what it sees.

Two scripted CPU vLLM servers, with small KV caches. The crowd comes twice: to a load balancer in front of
them, and to the gateway. It consists of unmodified agents, which repair a small program each in a scratch
directory of its own, and of replayed conversations that need more KV than there is. The comparison says what
is better and what is worse.

Between an agent and the gateway stands a `Hop`: it knows which process sent a request (the truth), takes the
identity out of the requests of every second run, and notes what the gateway said of them (the inference).
The report compares the two. `--quick` is this alone: six agents, the gateway, and as much KV as they want.

    errors      what is missing, in one line          workshop   the small program to repair
    progress    lines with elapsed time               scripts    what the model says to each agent
    processes   start, stop, leave nothing behind     identity   taking it out of a request
    install     the agents, pinned                    hop        the proxy in front of one agent run
    agents      how each agent is run                 runs       several agents at once
    stage       engines and gateway                   records    the gateway's information stream
    report      the truth beside the inference        printing   the report as text
    replay      the replayed conversations            balancer   what stands before stock servers
    sides       one side, and what was counted        comparison both sides' figures
    side_by_side  the comparison as text              page       the comparison as HTML
"""
