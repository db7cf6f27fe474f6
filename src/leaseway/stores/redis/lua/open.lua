-- Under which fence are we?
return cmsgpack.pack({ 'opened', fenced(clock()) })
