"""`python -m demo`: real agents, through the gateway, on real vLLM servers, and what was seen of them.

Two scripted CPU vLLM servers stand behind the gateway. Six unmodified agents, two of each kind, run at
once and repair a small program each, every one in a scratch directory of its own. Between an agent and
the gateway stands a `Hop`: it knows which process sent a request (the truth), takes the identity out of
the requests of every second run, and notes what the gateway said of them (the inference). The report
compares the two.

    errors      what is missing, in one line          workshop   the small program to repair
    progress    lines with elapsed time               scripts    what the model says to each agent
    processes   start, stop, leave nothing behind     identity   taking it out of a request
    install     the agents, pinned                    hop        the proxy in front of one agent run
    agents      how each agent is run                 runs       several agents at once
    stage       engines and gateway                   records    the gateway's information stream
    report      what is printed
"""
